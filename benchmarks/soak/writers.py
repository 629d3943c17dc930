"""The application: processes that write source rows in the most demanding ways.

They lock source rows in key order, table after table, so that a deadlock can only be our fault.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from django.db import Error, connection, transaction

from benchmarks.app.models import Article, Note, Page
from benchmarks.related.models import Comment, Essay
from benchmarks.soak import actions, decoded, pages, spanning

HOT = -1
"""The key of the hot row, which all writers write all the time."""

WARM_ROWS = 50
WARM_SHARE = 0.5
"""So many rows get this share of the writes, so that they are written again while pending."""

ROWS_KEPT = 3000
HOT_SHARE = 0.3
SPANNING_SHARE = 0.35
TRUNCATE_SHARE = 0.012
ROLLBACK_SHARE = 0.25
SAVEPOINT_ROLLBACK_SHARE = 0.1
REPEATABLE_READ_SHARE = 0.2

SIZES = ((0.75, 1, 1), (0.92, 2, 10), (0.99, 20, 150), (1.0, 1000, 2000))
"""How many rows of a table a transaction takes: (cumulative share of transactions, from, to)."""

PAUSES = ((0.5, 0.0), (0.8, 0.05), (0.98, 0.4), (1.0, 3.0))
"""How long a transaction pauses: (cumulative share of transactions, at most so many seconds)."""

BREATH_SECONDS = 0.03

LARGE_TEXT_SHARE = 0.02
PREPARED_SHARE = 0.05
"""Of the texts and of the transactions, where a worker reads from the write-ahead log."""


class WriterError(NamedTuple):
    """The error that ended a transaction."""

    sqlstate: str | None
    is_repeatable_read: bool
    message: str


@dataclass(slots=True)
class Written:
    """What one writer has done. ``carried``: see ``actions``."""

    committed: int = 0
    rolled_back: int = 0
    rows: int = 0
    carried: Counter[str] = field(default_factory=Counter)
    errors: list[WriterError] = field(default_factory=list)


class RolledBack(Exception):
    """The application rolls back on purpose."""


def write(
    pipe: Connection,
    number: int,
    seed: int,
    deadline: float,
    reads_log: bool = False,
    prepares: bool = False,
) -> None:
    """Write until the deadline, then send what was done.

    ``reads_log``: a worker reads from the write-ahead log, so that also what it has other records
    of is written: large and prepared transactions, and texts that are stored apart. ``prepares``:
    the server has room for prepared ones.
    """
    writer = Writer(number, seed)
    writer.texts.large_share = LARGE_TEXT_SHARE if reads_log else 0.0
    is_large_due = reads_log and number == 0
    while time.monotonic() < deadline:
        if is_large_due:
            writer.attempt(decoded.write_many, decoded.delete_many)
            is_large_due = False
        elif prepares and writer.draw.random() < PREPARED_SHARE:
            writer.attempt(lambda: decoded.prepare(writer.texts, writer.draw))
        writer.transaction()
        time.sleep(writer.draw.expovariate(1 / BREATH_SECONDS))
    pipe.send(writer.written)


class Writer:
    """Draws transactions from its seed, and runs them."""

    def __init__(self, number: int, seed: int) -> None:
        self.draw = random.Random(f"{seed} writer {number}")
        self.texts = actions.Texts(f"w{number}", self.draw)
        self.written = Written()

    def transaction(self) -> None:
        """Run one transaction. Note its error, if any."""
        is_repeatable_read = self.draw.random() < REPEATABLE_READ_SHARE
        try:
            with transaction.atomic():
                if is_repeatable_read:
                    connection.cursor().execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                share = self.draw.random()
                if share < HOT_SHARE:
                    done = self._hot()
                elif share < HOT_SHARE + SPANNING_SHARE:
                    done = self._spanning(is_repeatable_read=is_repeatable_read)
                else:
                    done = self._tables(is_repeatable_read=is_repeatable_read)
                self._pause()
                self._perhaps_roll_back(ROLLBACK_SHARE)
                # Note it before the commit, whose reply may be lost.
                self.written.carried.update(done.carried)
            self.written.committed += 1
            self.written.rows += done.rows
        except RolledBack:
            self.written.rolled_back += 1
        except Error as error:
            sqlstate = getattr(error.__cause__, "sqlstate", None)
            message = f"{type(error).__name__}: {error}"
            self.written.errors.append(WriterError(sqlstate, is_repeatable_read, message))
            self.written.rolled_back += 1
            connection.close()

    def attempt(self, *transactions: Callable[[], int]) -> None:
        """Run transactions that see to their own commit. Note the error that ends them, if any."""
        for one in transactions:
            try:
                self.written.rows += one()
                self.written.committed += 1
            except Error as error:
                sqlstate = getattr(error.__cause__, "sqlstate", None)
                message = f"{type(error).__name__}: {error}"
                self.written.errors.append(WriterError(sqlstate, False, message))
                self.written.rolled_back += 1
                connection.close()

    def _hot(self) -> actions.Done:
        """Write the hot row, and nothing else."""
        values = {"title": self.texts.tag(), "contents": self.texts.paragraph(), "is_public": True}
        if not Article._base_manager.filter(pk=HOT).update(**values):
            Article._base_manager.bulk_create([Article(pk=HOT, **values)], ignore_conflicts=True)
        return actions.Done(1)

    def _tables(self, *, is_repeatable_read: bool) -> actions.Done:
        rows, carried = 0, []
        # No TRUNCATE with an old snapshot: that is left to the reconciler, see docs/guarantees.md.
        truncate_share = 0 if is_repeatable_read else TRUNCATE_SHARE
        for model in (Article, Note, Page):
            if self.draw.random() < 0.5:
                continue
            if self.draw.random() < truncate_share:
                actions.truncate(model)
            elif model is Page:
                done = pages.walk(min(self._size(), pages.AT_ONCE), self.texts, self.draw)
                rows, carried = rows + done.rows, [*carried, *done.carried]
            else:
                done = self._table(model, self._size())
                rows, carried = rows + done.rows, [*carried, *done.carried]
        if self.draw.random() < truncate_share:
            actions.truncate(self.draw.choice((Comment, spanning.Through, Essay)))
        elif self.draw.random() < 0.5:
            done = self._spanning(is_repeatable_read=is_repeatable_read)
            rows, carried = rows + done.rows, [*carried, *done.carried]
        return actions.Done(rows, carried)

    def _spanning(self, *, is_repeatable_read: bool) -> actions.Done:
        """Write the tables that texts span: lock rows, pause, and do a few actions on them."""
        chosen = spanning.choose(self.draw, is_repeatable_read=is_repeatable_read)
        taken = spanning.lock(chosen, self.draw, self._size())
        self._pause()
        rows, carried = 0, []
        for action in chosen:
            try:
                with transaction.atomic():
                    texts = action.do(taken, self.texts) or []
                    self._perhaps_roll_back(SAVEPOINT_ROLLBACK_SHARE)
                rows, carried = rows + 1, [*carried, *texts]
            except RolledBack:
                """Roll back to the savepoint only."""
        return actions.Done(rows, carried)

    def _table(self, model: Any, size: int) -> actions.Done:
        """Lock some rows, pause, do a few actions on them, and insert others."""
        taken = self._take(model, size)
        self._pause()
        rows, carried = len(taken), []
        is_short = len(taken) < size or self.draw.random() < 0.3
        if is_short and model._base_manager.count() < ROWS_KEPT:
            rows += actions.insert(model, size, self.texts).rows
        while taken:
            cut = self.draw.randint(1, len(taken))
            part, taken = taken[:cut], taken[cut:]
            try:
                with transaction.atomic():
                    done = self.draw.choice(actions.ON_ROWS)(part, self.texts)
                    self._perhaps_roll_back(SAVEPOINT_ROLLBACK_SHARE)
                carried += done.carried
            except RolledBack:
                """Roll back to the savepoint only."""
        return actions.Done(rows, carried)

    def _take(self, model: Any, size: int) -> list[Any]:
        """Lock existing rows in key order, and return them."""
        others = model._base_manager.exclude(pk=HOT) if model is Article else model._base_manager
        if self.draw.random() < WARM_SHARE:
            first = list(others.order_by("pk").values_list("pk", flat=True)[:WARM_ROWS])
            keys = self.draw.sample(first, min(size, len(first)))
        else:
            keys = list(others.order_by("?").values_list("pk", flat=True)[:size])
        return list(model._base_manager.filter(pk__in=keys).order_by("pk").select_for_update())

    def _size(self) -> int:
        share = self.draw.random()
        return next(self.draw.randint(low, high) for to, low, high in SIZES if share <= to)

    def _perhaps_roll_back(self, share: float) -> None:
        if self.draw.random() < share:
            raise RolledBack

    def _pause(self) -> None:
        share = self.draw.random()
        longest = next(seconds for to, seconds in PAUSES if share <= to)
        if longest:
            time.sleep(self.draw.uniform(0, longest))
