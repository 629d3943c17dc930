"""procrastinate with async tasks, 32 at once. It deletes successful jobs."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Sequence

import procrastinate
import psycopg

from benchmarks.peers.producer import Producer
from benchmarks.queue.handler import AT_ONCE, Handler

MOST_JOBS = 20_000


def _app(url: str) -> procrastinate.App:
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=4, max_size=AT_ONCE)
    return procrastinate.App(connector=connector)


def fill(url: str, count: int) -> None:
    """Install and add jobs."""
    asyncio.run(_fill(url, count))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


async def _fill(url: str, count: int) -> None:
    app = _app(url)

    @app.task(name="handle")
    async def handle(number: int) -> None: ...

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for start in range(0, count, 1000):
            numbers = range(start, min(start + 1000, count))
            await handle.batch_defer_async(*({"number": number} for number in numbers))


def producer(url: str) -> Producer:
    """Return what adds jobs."""
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))

    @app.task(name="handle")
    def handle(number: int) -> None: ...

    app.open()
    atexit.register(app.close)  # else its threads hold up the end of the process

    def one(number: int) -> None:
        handle.defer(number=number)

    def many(numbers: Sequence[int]) -> None:
        handle.batch_defer(*({"number": number} for number in numbers))

    return Producer(one, many)


def drain(url: str, handler: Handler) -> None:
    """Handle all jobs."""
    asyncio.run(_drain(url, handler))


async def _drain(url: str, handler: Handler) -> None:
    app = _app(url)

    @app.task(name="handle")
    async def handle(number: int) -> None:
        await handler.later(number)

    async with app.open_async():
        await app.run_worker_async(
            concurrency=AT_ONCE, delete_jobs="successful", install_signal_handlers=False
        )
