"""pgqueuer over asyncpg, with uvloop. It picks batches of 50 ahead of the 32 jobs that run."""

from __future__ import annotations

import asyncio

import asyncpg
import uvloop
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver
from pgqueuer.adapters.persistence.queries import Queries
from pgqueuer.core.applications import PgQueuer

from benchmarks.queue.handler import BATCH, Handler


def fill(url: str, count: int) -> None:
    """Install and add jobs."""
    asyncio.run(_fill(url, count))


async def _fill(url: str, count: int) -> None:
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    for start in range(0, count, 10_000):
        size = min(10_000, count - start)
        await queries.enqueue(["handle"] * size, [b"1"] * size, [0] * size)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


def drain(url: str, handler: Handler) -> None:
    """Handle all jobs."""
    uvloop.run(_drain(url, handler))


async def _drain(url: str, handler: Handler) -> None:
    connection = await asyncpg.connect(url)
    queue = PgQueuer(AsyncpgDriver(connection))

    @queue.entrypoint("handle")
    async def handle(job: object) -> None:
        await handler.later(job)

    await queue.run(batch_size=BATCH, max_concurrent_tasks=4 * BATCH)
