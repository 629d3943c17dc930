"""Save rows one by one, without and beside a worker."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from benchmarks import captures, pgbench
from benchmarks.compare import Figures
from benchmarks.soak.processes import Workers
from benchmarks.write.table import Table

ROWS = 10_000
RUNNING = "SELECT EXISTS (SELECT FROM pgembed_job WHERE status = 'running')"
# The question that a trigger asks: can it take the lock that a sleeping worker holds?
ON_WATCH = """
    SELECT NOT (
        pg_try_advisory_lock_shared(key)
        AND pg_advisory_unlock_shared(key)
    )
    FROM hashtextextended('{spec}', 'pgembed_job'::regclass::oid::bigint) AS key
"""


class Saves:
    """Measures saves with a number of clients."""

    # Not within quotes, where pgbench would not replace a variable.
    SCRIPT = rf"""
\set id random(1, {ROWS})
\set salt random(1, 1000000000)
UPDATE app_article SET title = 'Article ' || :salt WHERE id = :id;
"""
    SPEC = "app.ArticleEmbedding"
    WORK = "UPDATE app_article SET title = title || ' before'"
    """Keeps a worker busy."""

    def __init__(self, table: Table, folder: Path, clients: int, seconds: float) -> None:
        self.table = table
        self.clients = clients
        self._seconds = seconds
        self._folder = folder
        self._script = folder / f"{self.SPEC}.sql"
        self._script.write_text(self.SCRIPT)

    def of(self, name: str) -> Callable[[], Figures]:
        """Return a function that measures one contender without a worker."""

        def measure() -> Figures:
            self._begin(name)
            return self._run()

        return measure

    def beside_worker(self, *, is_busy: bool) -> Figures:
        """Measure ours beside a worker that sleeps until the first save, or that is at work."""
        self._begin("ours")
        workers = Workers(1, self._folder)
        if is_busy:
            self.table.connection.execute(self.WORK)
        workers.tend()
        try:
            self._wait(RUNNING if is_busy else ON_WATCH.format(spec=self.SPEC))
            return self._run()
        finally:
            workers.stop()
            assert not workers.deaths, workers.deaths

    def beside_reader(self, capture: str) -> Figures:
        """Measure a capture beside a worker that reads the log and embeds.

        How far it is behind is looked up once the writes have gone on for the set time.
        """
        self._begin(capture)
        settings = {**json.loads(os.environ["BENCHMARK_SETTINGS"]), "CAPTURE": capture}
        workers = Workers(1, self._folder)
        with patch.dict(os.environ, BENCHMARK_SETTINGS=json.dumps(settings)):
            workers.tend()
        try:
            self._wait(captures.IS_READ)
            self.table.connection.execute(self.WORK)
            self._wait(RUNNING)
            return self._run(at_the_end=self._lag)
        finally:
            workers.stop()
            assert not workers.deaths, workers.deaths

    def _lag(self) -> Figures:
        [position, seconds] = self.table.connection.execute(captures.LAG).fetchone() or [0, 0]
        return {"lag, MB": float(position) / 2**20, "lag, s": float(seconds)}

    def _begin(self, name: str) -> None:
        self.table.begin(name, rows=ROWS)

    def _wait(self, question: str) -> None:
        deadline = time.monotonic() + 30
        while self.table.connection.execute(question).fetchone() != (True,):
            assert time.monotonic() < deadline, question
            time.sleep(0.02)

    def _run(self, at_the_end: Callable[[], Figures] = dict) -> Figures:
        return pgbench.save(
            self.table.url,
            self._script,
            clients=self.clients,
            seconds=self._seconds,
            at_the_end=at_the_end,
        )
