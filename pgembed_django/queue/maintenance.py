"""The chores of a worker: reap, prune, and what its handlers add. No worker is the leader.

They run on timers in two threads, each with its own database connection, because some chores take
minutes, and expired leases must not wait for that.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import DatabaseError, InterfaceError, connections

from pgembed_django import conf, database, events, faults
from pgembed_django.exceptions import MaintenanceDied
from pgembed_django.faults import Fault
from pgembed_django.models.job import Ending, Job
from pgembed_django.once import Told
from pgembed_django.queue import jobs, rollups
from pgembed_django.queue.handler import Handler
from pgembed_django.threads import OurThread

STOP_SECONDS = 30.0

RENEW_SECONDS = faults.MAX_OUTAGE_SECONDS + 5.0
"""After an outage all workers are back after so long, and have renewed their leases."""

_told = Told()
"""Which errors were logged already. Keyed by chore, spec and database."""


@dataclass(slots=True)
class Chore:
    """A function ``once`` that is called every ``seconds``, or never if that is zero.

    It returns how many jobs became ready. ``put_off_seconds`` is the current backoff while the
    server is out of room or read-only. Zero: the last call succeeded.
    """

    seconds: float
    once: Callable[[], int]
    starts_at_once: bool = True
    """Whether its first turn is at the start. Otherwise it is after ``seconds``."""
    awaits_others: bool = False
    """Whether it has no turn until all other workers are back from an outage, too."""
    due_at: float = 0.0
    put_off_seconds: float = 0.0


def attempt(once: Callable[[], int]) -> int:
    """Run a chore once. An error that fewer rows might avoid is logged, not raised."""
    try:
        return once()
    except DatabaseError as error:
        if not faults.may_pass(error):
            raise
        events.tell(events.CHORE_CANCELED, chore=once.__name__, error=str(error))
        return 0


@contextmanager
def apart(spec: str, *, chore: str, using: str) -> Iterator[None]:
    """Keep a chore's error in one spec from stopping the other specs. Log it once.

    During a deploy a spec's tables may differ from the code: a migration ran before this process
    was restarted, or has yet to run.
    """
    what = chore, spec, using
    try:
        yield
        _told.clear(what)
    except DatabaseError as error:
        fault, reason = faults.of(error), faults.said(error)
        if fault is not Fault.SCHEMA and not faults.may_pass(error):
            raise
        if not _told.is_new(what, reason):
            return
        if fault is Fault.SCHEMA:
            events.tell(events.CHORE_REFUSED, chore=chore, spec=spec, error=reason)
        else:
            events.tell(events.CHORE_CANCELED, chore=chore, error=reason)


class Chores:
    """A thread that runs chores until it is stopped. Calls ``wake`` when jobs became ready."""

    def __init__(
        self,
        name: str,
        chores: Sequence[Chore],
        *,
        using: str,
        wake: Callable[[], None],
        stopping: threading.Event | None = None,
    ) -> None:
        self.using = using
        self.stopping = stopping or threading.Event()
        self._chores = [chore for chore in chores if chore.seconds]
        self._wake = wake
        self._at = ""
        self._others_back_at = 0.0
        self._error: BaseException | None = None
        self._thread = OurThread(target=self._run, name=f"pgembed-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread. Chores that start at once are due immediately."""
        now = time.monotonic()
        for chore in self._chores:
            chore.due_at = now if chore.starts_at_once else now + chore.seconds
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the thread, if one did: a worker must not go on without it."""
        if self._error is not None:
            raise MaintenanceDied(f"{self._thread.name} died: {self._error}") from self._error

    def stop(self) -> None:
        """Ask the thread to end after the chore that it is running."""
        self.stopping.set()

    def join(self) -> None:
        """Wait up to ``STOP_SECONDS`` for the thread's end. A longer statement is left running."""
        if self._thread.is_alive():
            self._thread.join(timeout=STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # noqa: BLE001 - raised again by check(), in the worker
            self._error = error
            self._wake()
        finally:
            connections[self.using].close()

    def _loop(self) -> None:
        outage_seconds = 0.0
        while not self.stopping.is_set():
            try:
                self._round()
                outage_seconds = 0.0
            except (DatabaseError, InterfaceError) as error:
                if not faults.is_lost_connection(error):
                    raise
                outage_seconds = faults.longer(outage_seconds)
                self._others_back_at = time.monotonic() + outage_seconds + RENEW_SECONDS
                events.tell(
                    events.CHORE_CUT_OFF,
                    chore=self._at,
                    seconds=outage_seconds,
                    error=str(error).strip(),
                )
                connections[self.using].close()
            next_due = min(map(self._due_at, self._chores), default=float("inf"))
            wait = max(next_due - time.monotonic(), 0.0)
            self.stopping.wait(outage_seconds or min(wait, threading.TIMEOUT_MAX))

    def _round(self) -> None:
        for chore in self._chores:
            if time.monotonic() >= self._due_at(chore) and not self.stopping.is_set():
                self._at = chore.once.__name__
                try:
                    if attempt(chore.once):
                        self._wake()
                    chore.put_off_seconds = 0.0
                except DatabaseError as error:
                    if not faults.is_of_the_server(error):
                        raise
                    self._put_off(chore, error)
                chore.due_at = time.monotonic() + max(chore.seconds, chore.put_off_seconds)

    def _due_at(self, chore: Chore) -> float:
        return max(chore.due_at, self._others_back_at if chore.awaits_others else 0.0)

    def _put_off(self, chore: Chore, error: DatabaseError) -> None:
        """Back off while the server is out of room or read-only. Logged once. Others go on."""
        if not chore.put_off_seconds:
            events.tell(events.CHORE_CANCELED, chore=chore.once.__name__, error=str(error))
        chore.put_off_seconds = faults.longer(chore.put_off_seconds)
        self._others_back_at = time.monotonic() + chore.put_off_seconds + RENEW_SECONDS
        connections[self.using].close()


PRUNE_SECONDS = 60.0

MAX_GAPS = 10_000
"""How many jobs at most are added for gaps at once."""

PUT_BACK_SECONDS = 1.0
"""The server's clock is never this much behind its former self, unless somebody put it back."""

NOW = "SELECT extract(epoch FROM statement_timestamp())::float8"


class Maintenance:
    """Runs all chores in threads. Locks keep workers from doing the same chore at once."""

    def __init__(
        self,
        handlers: Sequence[Handler],
        *,
        using: str,
        settings: conf.Settings,
        wake: Callable[[], None],
        worker_id: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.using = using
        self.settings = settings
        self.handlers = handlers
        self._specs = [spec for handler in handlers for spec in handler.specs]
        self._clock = clock
        self._ahead = math.inf
        """By how much the server's clock was ahead of ours. Infinite: not known yet."""
        self._was_put_back = False
        """Whether the server's clock was, or may have been before we looked at it first."""
        self._reaps_from = clock()
        self._own = jobs.Lease(worker_id, settings.lease_seconds) if worker_id else None
        self._stopping = threading.Event()
        ours = [
            # Not at once: this worker may have been started after an outage.
            Chore(settings.reap_seconds, self.reap, starts_at_once=False, awaits_others=True),
            Chore(settings.reconcile_seconds, self.reconcile),
        ]
        theirs = [handler.chores(self._stopping.is_set) for handler in handlers]
        short = [chore for few, _ in theirs for chore in few]
        long = [chore for _, few in theirs for chore in few]
        self._threads = [
            Chores(name, chores, using=using, wake=wake, stopping=self._stopping)
            for name, chores in (
                ("keeper", [*ours, *short, Chore(PRUNE_SECONDS, self.prune)]),
                ("builder", long),
            )
        ]

    def start(self) -> None:
        """Start the threads. Their first rounds begin at once."""
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise the error that ended a thread, if one did."""
        for thread in self._threads:
            thread.check()

    def stop(self) -> None:
        """End the threads and wait for them."""
        self._stopping.set()  # of all of them
        for thread in self._threads:
            thread.join()

    def once(self) -> int:
        """Do the chores of a drain once, in the caller's thread. Return how many jobs became ready.

        Takes jobs back, lets the handlers look for gaps, and prunes.
        """
        ready = attempt(self.reap) + attempt(self.reconcile)
        for handler in self.handlers:
            ready += sum(attempt(chore) for chore in handler.chores_of_drain())
        attempt(self.prune)
        return ready

    def reap(self) -> int:
        """Take back jobs whose lease has expired. Return how many are due again."""
        if self._leases_ran_out_at_once():
            return 0
        recalled = 0
        if self._was_put_back:
            recalled = jobs.recall(
                self._specs, lease_seconds=self.settings.lease_seconds, using=self.using
            )
            self._was_put_back = False
        reaped = jobs.reap(max_crashes=self.settings.max_crashes, using=self.using, own=self._own)
        tally = rollups.Tally()
        for claim, ending in reaped:
            if ending in {Ending.BUSY, Ending.LOST}:
                continue  # nothing was taken back
            tally.ended(claim.spec, ending)
            events.tell(
                events.LEASE_EXPIRED,
                about=claim,
                spec=claim.spec,
                source_pk=claim.source_pk,
                job_id=claim.id,
                crashes=claim.crashes + 1,
                result=ending,
            )
        tally.flush(using=self.using)
        return recalled + sum(ending is Ending.REQUEUED for _, ending in reaped)

    def reconcile(self) -> int:
        """Enqueue the gaps that handlers tell of. Fail old jobs of specs that nobody knows."""
        total = 0
        for handler in self.handlers:
            found, page = 0, ""
            while found < MAX_GAPS and not self._stopping.is_set():
                gaps = handler.find_gaps(page)
                if gaps is None:
                    break
                found += jobs.enqueue(
                    gaps.spec,
                    jobs.free(gaps.spec, gaps.units, using=self.using),
                    kind=Job.Kind.RECONCILER,
                    priority=handler.specs[gaps.spec],
                    using=self.using,
                )
                if not (page := gaps.next_page):
                    break
            total += found
        self._fail_unknown()
        return total

    def _fail_unknown(self) -> None:
        told = [handler.known for handler in self.handlers]
        if all(names is None for names in told):
            return
        known = {*self._specs, *(name for names in told for name in names or ())}
        unknown = jobs.fail_unknown(sorted(known), using=self.using)
        if unknown:
            events.tell(events.JOBS_WITHOUT_SPEC, count=unknown)

    def prune(self) -> int:
        """Delete old finished jobs in small batches, other old records, and dead workers' rows."""
        while jobs.prune(keep_seconds=self.settings.keep_succeeded_seconds, using=self.using):
            if self._stopping.is_set():
                break
        jobs.prune_attempts(using=self.using)
        rollups.prune(using=self.using)
        jobs.forget_dead_workers(silent_seconds=self.settings.lease_seconds * 3, using=self.using)
        return 0

    def _leases_ran_out_at_once(self) -> bool:
        """Return whether the server's clock was put forward, and workers have yet to renew.

        It is as if we had not run for a while: everything was asleep, and the others may be back.
        Also notes whether the clock was put back.
        """
        before = self._clock()
        [[now]] = database.rows(self.using, NOW)
        after = self._clock()
        if now - after > self._ahead + self.settings.lease_seconds / 3:
            # Within a third of their lease all have renewed it.
            self._reaps_from = after + self.settings.lease_seconds / 2
        self._was_put_back |= now - before < self._ahead - PUT_BACK_SECONDS
        self._ahead = now - before
        return after < self._reaps_from
