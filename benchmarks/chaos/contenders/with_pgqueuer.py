"""pgqueuer: its database executor retries exceptions. Silent jobs are retried after the lease."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver
from pgqueuer.adapters.drivers.psycopg import SyncPsycopgDriver
from pgqueuer.adapters.persistence.queries import Queries, SyncQueries
from pgqueuer.core.applications import PgQueuer
from pgqueuer.core.executors import DatabaseRetryEntrypointExecutor

from benchmarks.chaos.contenders import base


class Contender(base.Contender):
    OPEN = "SELECT count(*) FROM pgqueuer"
    GIVEN_UP = "SELECT count(*) FROM pgqueuer_log WHERE status = 'exception'"

    def prepare(self) -> None:
        super().prepare()
        asyncio.run(self._install())

    async def _install(self) -> None:
        connection = await asyncpg.connect(self.url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    def enqueue(self, key: int) -> None:
        SyncQueries(SyncPsycopgDriver(self.connection)).enqueue("embed", str(key).encode())

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.url)))

        @queue.entrypoint(
            "embed",
            concurrency_limit=0,
            executor_factory=lambda parameters: DatabaseRetryEntrypointExecutor(
                parameters=parameters, max_attempts=10
            ),
        )
        async def embed(job: object) -> None:
            await asyncio.to_thread(base.handle, self.url, int(job.payload))  # type: ignore[attr-defined]

        await queue.run(
            batch_size=base.AT_ONCE,
            max_concurrent_tasks=2 * base.AT_ONCE,
            heartbeat_timeout=timedelta(seconds=base.LEASE_SECONDS),
        )
