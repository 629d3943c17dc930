"""Many rows in one statement, by one writer."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.compare import Figures
from benchmarks.write.table import FILL, Table

UPDATE = "UPDATE app_article SET title = title || ' again'"
UNWATCHED = "UPDATE app_article SET views = views + 1"


class Writes:
    """INSERT and UPDATE, timed."""

    def __init__(self, table: Table, rows: int) -> None:
        self._table = table
        self._rows = rows

    def of(self, name: str) -> Callable[[], Figures]:
        """Return what measures one contender."""

        def measure() -> Figures:
            self._table.begin(name)
            figures = {"INSERT": self._timed(FILL, self._rows)}
            if name == "ours":
                [jobs] = self._table.connection.execute(
                    "SELECT count(*) FROM pgembed_job WHERE status = 'pending'"
                ).fetchone() or [0]
                assert jobs == self._rows, f"{jobs} jobs for {self._rows} rows"
            self._table.empty()
            figures["UPDATE"] = self._timed(UPDATE)
            # The bare INSERT and pgai's trigger do not tell one field from another.
            if name in ("none", "ours"):
                figures["UPDATE of another field"] = self._timed(UNWATCHED)
            return figures

        return measure

    def _timed(self, statement: str, *parameters: int) -> float:
        self._table.connection.execute("CHECKPOINT")
        started = time.perf_counter()
        self._table.connection.execute(statement, parameters or None)
        return time.perf_counter() - started
