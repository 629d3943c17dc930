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

from pgembed_django import conf, events
from pgembed_django.core import database, faults
from pgembed_django.core.faults import Fault
from pgembed_django.core.threads import OurThread
from pgembed_django.events import LogOnce
from pgembed_django.exceptions import MaintenanceDied
from pgembed_django.models.job import Ending, Job
from pgembed_django.queue import jobs, rollups, sessions
from pgembed_django.queue.handler import Handler, is_handlers_fault

STOP_SECONDS = 30.0
"""How long a worker that ends waits for its chores. A longer statement is left running."""

RENEW_SECONDS = faults.MAX_OUTAGE_SECONDS + 5.0
"""After an outage all workers are back after so long, and have renewed their leases."""

_told = LogOnce()
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
def apart(spec: str, *, chore: str, using: str, is_users: bool = False) -> Iterator[None]:
    """Keep a chore's error in one spec from stopping the other specs. Log it once.

    During a deploy a spec's tables may differ from the code: a migration ran before this process
    was restarted, or has yet to run. ``is_users``: the code is a project's own, so it may raise
    anything.
    """
    what = chore, spec, using
    try:
        yield
        _told.clear(what)
    except Exception as error:
        is_refused = is_users or faults.of(error) is Fault.SCHEMA
        if not (is_handlers_fault(error) if is_users else is_refused or faults.may_pass(error)):
            raise
        is_of_database = isinstance(error, DatabaseError)
        reason = faults.said(error) if is_of_database else faults.described(error)
        if not _told.is_new(what, reason):
            return
        if is_refused:
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
        self.error: BaseException | None = None
        self._thread = OurThread(target=self._run, name=f"pgembed-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread. Chores that start at once are due immediately."""
        now = time.monotonic()
        for chore in self._chores:
            chore.due_at = now if chore.starts_at_once else now + chore.seconds
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the thread, if one did: a worker must not go on without it."""
        if self.error is not None:
            raise MaintenanceDied(f"{self._thread.name} died: {self.error}") from self.error

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """End the thread, and wait for its end."""
        self.stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=seconds)

    def _run(self) -> None:
        outage_seconds = 0.0
        try:
            while not self.stopping.is_set():
                try:
                    with sessions.Connecting(self.using):
                        self._round()
                    outage_seconds = 0.0
                except (DatabaseError, InterfaceError) as error:
                    if not faults.is_lost_connection(error):
                        raise
                    outage_seconds = faults.longer(outage_seconds)
                    said = str(error).strip()
                    events.tell(
                        events.CHORE_CUT_OFF, chore=self._at, seconds=outage_seconds, error=said
                    )
                    self._await_others(outage_seconds)
                next_due = min((chore.due_at for chore in self._chores), default=math.inf)
                wait = max(next_due - time.monotonic(), 0.0)
                self.stopping.wait(outage_seconds or min(wait, threading.TIMEOUT_MAX))
        except BaseException as error:  # noqa: BLE001 - raised again by check(), in the worker
            self.error = error
            self._wake()
        finally:
            connections[self.using].close()

    def _round(self) -> None:
        for chore in self._chores:
            if time.monotonic() < chore.due_at or self.stopping.is_set():
                continue
            self._at = chore.once.__name__
            try:
                if attempt(chore.once):
                    self._wake()
                chore.put_off_seconds = 0.0
            except DatabaseError as error:
                if not faults.is_of_the_server(error):
                    raise
                # It is out of room or read-only. Logged once. The others go on.
                if not chore.put_off_seconds:
                    events.tell(events.CHORE_CANCELED, chore=self._at, error=str(error))
                chore.put_off_seconds = faults.longer(chore.put_off_seconds)
                self._await_others(chore.put_off_seconds)
            in_seconds = max(chore.seconds, chore.put_off_seconds)
            chore.due_at = max(chore.due_at, time.monotonic() + in_seconds)

    def _await_others(self, seconds: float) -> None:
        """Put off what waits until all other workers are back from an outage, too."""
        connections[self.using].close()
        for chore in self._chores:
            if chore.awaits_others:
                chore.due_at = max(chore.due_at, time.monotonic() + seconds + RENEW_SECONDS)


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
        ours += [chore for short, _ in theirs for chore in short]
        long = [chore for _, few in theirs for chore in few]
        self.threads = [
            Chores(name, chores, using=using, wake=wake, stopping=self._stopping)
            for name, chores in (
                ("keeper", [*ours, Chore(PRUNE_SECONDS, self.prune)]),
                ("builder", long),
            )
        ]
        endless = [handler.endless_chores(self._stopping.is_set) for handler in handlers]
        self.threads += [
            Chores(chore.once.__name__, [chore], using=using, wake=wake, stopping=self._stopping)
            for chores in endless
            for chore in chores
        ]

    def start(self) -> None:
        """Start the threads. Their first rounds begin at once."""
        for thread in self.threads:
            thread.start()

    def check(self) -> None:
        """Raise the error that ended a thread, if one did."""
        for thread in self.threads:
            thread.check()

    def stop(self) -> None:
        """End the threads and wait for them."""
        self._stopping.set()  # of all of them
        until = time.monotonic() + STOP_SECONDS
        for thread in self.threads:
            thread.stop(max(0.0, until - time.monotonic()))

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
        lease_seconds, using = self.settings.lease_seconds, self.using
        most = self.settings.max_crashes
        reaped: list[tuple[jobs.Claim, Ending]] = []
        for table in {handler.table for handler in self.handlers}:
            if self._was_put_back:
                recalled += jobs.recall(
                    self._specs, lease_seconds=lease_seconds, using=using, table=table
                )
            reaped += jobs.reap(max_crashes=most, using=using, own=self._own, table=table)
        self._was_put_back = False
        tally = rollups.Tally()
        for claim, ending in reaped:
            if ending in {Ending.BUSY, Ending.LOST}:
                continue  # nothing was taken back
            if ending is Ending.FAILED:
                tally.failed(claim.spec)
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
            specs = ", ".join(handler.specs)
            with apart(specs, chore="find_gaps", using=self.using, is_users=True):
                total += self._enqueue_gaps(handler)
        told = [handler.known for handler in self.handlers]
        if any(names is not None for names in told):
            known = {*self._specs, *(name for names in told for name in names or ())}
            if unknown := jobs.fail_unknown(sorted(known), using=self.using):
                events.tell(events.JOBS_WITHOUT_SPEC, count=unknown)
        return total

    def _enqueue_gaps(self, handler: Handler) -> int:
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
        return found

    def prune(self) -> int:
        """Delete old finished jobs in small batches, other old records, and dead workers' rows."""
        while jobs.prune(keep_seconds=self.settings.keep_succeeded_seconds, using=self.using):
            if self._stopping.is_set():
                break
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
