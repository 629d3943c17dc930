"""pgqueuer over asyncpg, with uvloop. It picks batches of 50 ahead of the 32 jobs that run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg
import psycopg
import uvloop
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver
from pgqueuer.adapters.drivers.psycopg import SyncPsycopgDriver
from pgqueuer.adapters.persistence.queries import Queries, SyncQueries
from pgqueuer.core.applications import PgQueuer
from pgqueuer.domain.models import Job

from benchmarks.peers.producer import Producer
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


def producer(url: str) -> Producer:
    """Return what adds jobs."""
    queries = SyncQueries(SyncPsycopgDriver(psycopg.connect(url, autocommit=True)))

    def one(number: int) -> None:
        queries.enqueue("handle", str(number).encode())

    def many(numbers: Sequence[int]) -> None:
        payloads = [str(number).encode() for number in numbers]
        queries.enqueue(["handle"] * len(payloads), payloads, [0] * len(payloads))

    return Producer(one, many)


def drain(url: str, handler: Handler) -> None:
    """Handle all jobs."""
    uvloop.run(_drain(url, handler))


async def _drain(url: str, handler: Handler) -> None:
    connection = await asyncpg.connect(url)
    queue = PgQueuer(AsyncpgDriver(connection))

    @queue.entrypoint("handle")
    async def handle(job: Job) -> None:
        await handler.later(int(job.payload or 0))

    await queue.run(batch_size=BATCH, max_concurrent_tasks=4 * BATCH)
