"""Store what came back. Vectors and completion commit together, in short transactions.

A thread with its own connection stores many at once, while the loop goes on claiming and
asking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent import futures

from django.db import DatabaseError, InterfaceError, connections

from pgembed_django import events, faults
from pgembed_django.faults import Fault
from pgembed_django.pipeline import transactions
from pgembed_django.pipeline.aside import Aside
from pgembed_django.pipeline.holding import Holding
from pgembed_django.pipeline.live import Live
from pgembed_django.pipeline.pieces import Pieces
from pgembed_django.pipeline.portion import Portion
from pgembed_django.pipeline.transactions import Completion
from pgembed_django.pipeline.units import Unit
from pgembed_django.threads import Threads

THREADLESS_SECONDS = 5.0
"""How long the loop stores by itself after the thread could not reach the database."""

STOP_SECONDS = 5.0
"""How long a worker that ends waits for units that are being stored."""

ROUNDS_BEHIND = 3
"""How many rounds of batches may wait: the loop goes on claiming while a round is stored."""


class Storing:
    """Stores all whole units and completes their jobs.

    The loop's own thread stores a few: handing them over would take longer. It also stores
    the next ones after a failure, to learn at once whether they can be stored. The other
    thread only writes; the held units are the loop's.
    """

    def __init__(
        self,
        *,
        holding: Holding,
        aside: Aside,
        live: Live,
        wake: Callable[[], None],
        inline: bool,
    ) -> None:
        self.holding = holding
        self.aside = aside
        self.live = live
        self.completed = 0
        self._wake = wake
        self._thread = None if inline else Threads(1, name="pgembed-storing")
        self._units: Sequence[Unit] = ()
        self._future: futures.Future[Completion] | None = None
        self._waiting = 0
        self._has_failed = False
        self._is_threadless = False
        self._threadless_until = float("-inf")
        self._portion = Portion()

    @property
    def is_at_work(self) -> bool:
        """Whether the thread is storing."""
        return self._future is not None

    @property
    def is_behind(self) -> bool:
        """Whether too many rounds of batches wait already to claim more."""
        settings = self.holding.settings
        return self._waiting >= ROUNDS_BEHIND * settings.batch_size * settings.concurrency

    def step(self) -> bool:
        """Hand out stored units, store whole ones. Return whether anything moved."""
        moved, left = self._collect()
        whole = self.holding.whole
        self._waiting = len(whole) - len(self._units) if self.is_at_work else 0
        if self.is_at_work:
            return moved
        # An open writer has locked what the thread just left: do not retry at once.
        units = [unit for unit in whole.values() if unit not in left]
        if not units:
            return moved
        is_few = len(units) < self.holding.settings.batch_size
        is_threadless = self._has_failed or time.monotonic() < self._threadless_until
        if self._thread is None or is_threadless or is_few:
            self._has_failed = True  # it stays so where storing raises
            ended, _ = self._hand_out(units, self._store(units))
            self._has_failed = False
            return ended or moved
        self._hand_over(units, self._thread)
        return moved

    def finish(self) -> None:
        """Wait for units that are being stored, and hand them out."""
        if self._future is not None:
            futures.wait([self._future], timeout=STOP_SECONDS)
            self._collect()

    def begin_anew(self) -> None:
        """Note an outage: the loop stores the next units itself, whichever thread met it."""
        self.finish()
        self._has_failed = True

    def close(self) -> None:
        """End the thread and its connection."""
        if self._thread is None:
            return
        if not self.is_at_work:
            closing = self._thread.submit(lambda: connections[self.holding.using].close())
            futures.wait([closing], timeout=STOP_SECONDS)
        self._thread.shutdown()

    def _hand_over(self, units: Sequence[Unit], thread: Threads) -> None:
        self._units = units
        for unit in units:
            unit.is_being_stored = True
        self._future = thread.submit(self._store, units)
        self._future.add_done_callback(lambda _: self._wake())

    def _store(self, units: Sequence[Unit]) -> Completion:
        """Run in either thread: touch nothing of the loop's.

        Few units per transaction: whoever deletes one of their rows waits for its end.
        """
        done = Completion()
        pieces = Pieces(units)
        while some := pieces.take(self._portion.size):
            started = time.perf_counter()
            try:
                one = transactions.store_whole(
                    some,
                    settings=self.holding.settings,
                    using=self.holding.using,
                    wait=pieces.wait,
                )
            except (DatabaseError, InterfaceError) as error:
                fault = faults.of(error)
                if fault is Fault.TOO_SLOW:
                    self._portion.halve(len(some))
                if fault is Fault.OUTAGE or faults.is_lost_connection(error):
                    connections[self.holding.using].close()
                if not done.units:
                    raise
                break  # the next try will find it: report what was done first
            done += one
            if one.busy:
                pieces.split(one.busy)
            else:
                self._portion.adapt(len(some), seconds=time.perf_counter() - started)
        return done

    def _collect(self) -> tuple[bool, Collection[Unit]]:
        """Hand out what the thread has stored."""
        if self._future is None or not self._future.done():
            return False, ()
        future, self._future = self._future, None
        units, self._units = self._units, ()
        for unit in units:
            unit.is_being_stored = False
        error = future.exception()
        self._has_failed = error is not None
        if isinstance(error, DatabaseError | InterfaceError) and faults.is_lost_connection(error):
            # Its own connection. If the database is away, the loop will find out.
            self._do_without_thread(error)
            return True, ()
        done = future.result()
        self._is_threadless = False
        return self._hand_out(units, done)

    def _do_without_thread(self, error: Exception) -> None:
        if not self._is_threadless:
            events.tell(events.STORING_ALONE, error=faults.said(error))
        self._is_threadless = True
        self._threadless_until = time.monotonic() + THREADLESS_SECONDS

    def _hand_out(self, units: Sequence[Unit], done: Completion) -> tuple[bool, Collection[Unit]]:
        """Let go of stored units. Returns whether there were any, and those left."""
        for unit in (*done.units, *done.outdated):
            unit.is_stored = True
        for unit in done.outdated:
            self.holding.release(unit)
            self.live.outdate()
        for unit, error in done.unfit:
            self.aside.put(unit.spec, error)
            self.aside.release([unit])
        for unit, said in done.put_off:
            self.holding.put_off(unit, said)
        for unit, said in done.refused:
            self.holding.retry(unit, said)
        held = [unit for unit in units if unit in self.holding]
        completed = set(done.units)
        self.holding.lose(unit.claim.id for unit in held if unit.claim.id in done.lost)
        self.holding.drop(unit.claim.id for unit in held if unit in completed)
        self._tell(done)
        left = {unit for unit in units if unit in self.holding}
        for unit in left:
            unit.is_blocked = True
        return len(left) < len(units), left

    def _tell(self, done: Completion) -> None:
        if not done.units:
            return
        self.completed += len(done.units)
        for unit in done.units:
            waited = done.waited.get(unit.claim.id)
            self.holding.tally.completed(unit.spec.key, waited=waited)
        events.tell(
            events.JOBS_COMPLETED,
            about=done,
            count=len(done.units),
            embedded=sum(unit.embedded for unit in done.units),
            reused=sum(unit.reused for unit in done.units),
            milliseconds=done.seconds * 1000,
        )
