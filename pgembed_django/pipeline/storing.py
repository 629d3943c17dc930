"""Store what came back. Vectors and completion commit together, in one short transaction.

It has a thread and a connection of its own: meanwhile the loop claims and asks on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent import futures
from typing import NamedTuple

from django.db import DatabaseError, InterfaceError, connections

from pgembed_django import database, events
from pgembed_django.pipeline import transactions
from pgembed_django.pipeline.holding import Holding
from pgembed_django.pipeline.transactions import Stored
from pgembed_django.pipeline.units import Unit
from pgembed_django.pool import Inline, Threads

STOP_SECONDS = 30.0
"""How long the end of a worker waits for what is being stored."""


class Completed(NamedTuple):
    """Units that were stored, and how long each write among them has waited, by job id."""

    units: Sequence[Unit]
    waited: Mapping[int, float]


class Storing:
    """Stores whole units, all there are at a time, and completes their jobs.

    The thread only writes. What is held is the loop's.
    """

    def __init__(self, *, holding: Holding, wake: Callable[[], None], inline: bool) -> None:
        self.holding = holding
        self.completed = 0
        self._wake = wake
        self._executor = Inline() if inline else Threads(1, name="pgembed-storing")
        self._units: Sequence[Unit] = ()
        self._future: futures.Future[Stored] | None = None
        self._waiting = 0

    @property
    def is_at_work(self) -> bool:
        """Whether a transaction is under way."""
        return self._future is not None

    @property
    def is_behind(self) -> bool:
        """Whether a round of batches waits already: no more is to be claimed."""
        settings = self.holding.settings
        return self._waiting >= settings.batch_size * settings.concurrency

    def step(self) -> bool:
        """Hand out what was stored, begin with what is whole, and tell whether anything moved."""
        moved, left = self._take()
        whole = self.holding.whole
        if not self.is_at_work:
            # What an open writer has locked is tried again after a while, not at once.
            self._start([unit for unit in whole.values() if unit not in left])
            self._waiting = 0
        else:
            self._waiting = len(whole) - len(self._units)
        # Inline it is done already.
        return self._take()[0] or moved

    def finish(self) -> None:
        """Wait for what is being stored, and hand it out."""
        if self._future is not None:
            futures.wait([self._future], timeout=STOP_SECONDS)
            self._take()

    def close(self) -> None:
        """End the thread, and its connection with it."""
        if isinstance(self._executor, Threads):
            closing = self._executor.submit(lambda: connections[self.holding.using].close())
            futures.wait([closing], timeout=STOP_SECONDS)
            self._executor.shutdown()

    def _start(self, units: Sequence[Unit]) -> None:
        if not units:
            return
        self._units = units
        for unit in units:
            unit.is_being_stored = True
        self._future = self._executor.submit(self._store, units)
        self._future.add_done_callback(lambda _: self._wake())

    def _store(self, units: Sequence[Unit]) -> Stored:
        """Run in the thread: touch nothing of the loop's."""
        using = self.holding.using
        try:
            return transactions.store_whole(units, settings=self.holding.settings, using=using)
        except (DatabaseError, InterfaceError) as error:
            if database.is_lost_connection(error):
                connections[using].close()
            raise

    def _take(self) -> tuple[bool, Collection[Unit]]:
        """Let go of what was stored. Returns whether there was any, and what was not."""
        if self._future is None or not self._future.done():
            return False, ()
        future, self._future = self._future, None
        units, self._units = self._units, ()
        for unit in units:
            unit.is_being_stored = False
        stored = future.result()
        for unit in stored.outdated:
            self.holding.give_back(unit)
            self.holding.has_old_spaces = True
        for unit, error in stored.refused:
            self.holding.retry(unit, error)
        self.holding.drop(unit.claim.id for unit in stored.completed)
        self.holding.lose(stored.lost)
        self._tell(stored)
        left = {unit for unit in units if unit in self.holding}
        return len(left) < len(units), left

    def _tell(self, stored: Stored) -> None:
        completed = stored.completed
        if not completed:
            return
        self.completed += len(completed)
        for unit in completed:
            self.holding.tally.completed(
                unit.spec.key,
                embedded=unit.embedded,
                reused=unit.reused,
                waited=stored.waited.get(unit.claim.id),
            )
        events.tell(
            events.JOBS_COMPLETED,
            about=Completed(completed, stored.waited),
            count=len(completed),
            embedded=sum(unit.embedded for unit in completed),
            reused=sum(unit.reused for unit in completed),
            milliseconds=stored.seconds * 1000,
        )
