"""procrastinate: ten attempts, a lock per row, and the periodic task from its manual that retries
jobs of dead workers.
"""

from __future__ import annotations

import asyncio
import json

import procrastinate
import psycopg

from benchmarks.chaos.contenders import base

EVERY_SECONDS = 2
DEFER = """
    SELECT procrastinate_defer_jobs_v1(ARRAY[
        ROW('default', 'embed', 0, %s, NULL, %s::jsonb, NULL)::procrastinate_job_to_defer_v1
    ])
"""


class Contender(base.Contender):
    OPEN = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
    GIVEN_UP = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('failed', 'aborted')"

    def prepare(self) -> None:
        super().prepare()
        asyncio.run(self._install())

    async def _install(self) -> None:
        async with self._app().open_async() as app:
            await app.schema_manager.apply_schema_async()

    def enqueue(self, key: int) -> None:
        self.execute(DEFER, str(key), json.dumps({"key": key}))

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        app = self._app()

        @app.task(name="embed", retry=procrastinate.RetryStrategy(max_attempts=10, wait=1))
        async def embed(key: int) -> None:
            await asyncio.to_thread(base.handle, self.url, key)

        async def retry_stalled() -> None:
            # Not procrastinate's own cron, whose shortest interval is a minute.
            while True:
                await asyncio.sleep(EVERY_SECONDS)
                stalled = await app.job_manager.get_stalled_jobs(
                    seconds_since_heartbeat=base.LEASE_SECONDS
                )
                for job in stalled:
                    try:
                        await app.job_manager.retry_job(job)
                    except (procrastinate.exceptions.ConnectorException, psycopg.Error):
                        """The other worker has retried it first."""

        async with app.open_async():
            retrying = asyncio.create_task(retry_stalled())
            await app.run_worker_async(
                concurrency=base.AT_ONCE,
                update_heartbeat_interval=1,
                stalled_worker_timeout=base.LEASE_SECONDS,
                fetch_job_polling_interval=1,
                install_signal_handlers=False,
            )
            retrying.cancel()

    def _app(self) -> procrastinate.App:
        connector = procrastinate.PsycopgConnector(conninfo=self.url, min_size=2, max_size=8)
        return procrastinate.App(connector=connector)
