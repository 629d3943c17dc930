"""Write many rows in one statement, by one writer."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks import captures
from benchmarks.compare import Figures
from benchmarks.write.table import FILL, Table

UPDATE = "UPDATE app_article SET title = title || ' again'"
ONE = """
    INSERT INTO app_article (title, contents, is_public, views)
    VALUES (%s, 'Reading the whole table is cheaper.', true, 0)
"""
ALONE = 1_000
UNWATCHED = "UPDATE app_article SET views = views + 1"


class Writes:
    """Times INSERT and UPDATE."""

    def __init__(self, table: Table, rows: int) -> None:
        self._table = table
        self._rows = rows

    def of(self, name: str) -> Callable[[], Figures]:
        """Return a function that measures one contender."""

        def measure() -> Figures:
            self._table.begin(name)
            figures = {"INSERT": self._timed(FILL, self._rows)}
            if name in ("ours", "statement", *captures.READ):
                wanted = 0 if name in captures.READ else self._rows
                [jobs] = self._table.connection.execute(
                    "SELECT count(*) FROM pgembed_job WHERE status = 'pending'"
                ).fetchone() or [0]
                assert jobs == wanted, f"{jobs} jobs for {self._rows} rows"
            figures["1,000 INSERTs of a row"] = self._alone()
            self._table.empty()
            if name == "statement":  # its UPDATE trigger is the same as ours
                return figures
            figures["UPDATE"] = self._timed(UPDATE)
            # The bare INSERT and pgai's trigger do not distinguish fields.
            if name in ("none", "ours", *captures.READ):
                figures["UPDATE of another field"] = self._timed(UNWATCHED)
            return figures

        return measure

    def _alone(self) -> float:
        """Insert rows one by one in one transaction: commits are measured elsewhere."""
        with self._table.connection.transaction():
            started = time.perf_counter()
            for number in range(ALONE):
                self._table.connection.execute(ONE, [f"Alone {number}"], prepare=True)
            return time.perf_counter() - started

    def _timed(self, statement: str, *parameters: int) -> float:
        self._table.connection.execute("CHECKPOINT")
        started = time.perf_counter()
        self._table.connection.execute(statement, parameters or None)
        return time.perf_counter() - started
