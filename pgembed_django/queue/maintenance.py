"""The chores of a worker: reap, prune, and what its handlers add. No worker is the leader.

There are two threads, because some chores take minutes, and expired leases must not wait for that.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

from pgembed_django import conf, database, events
from pgembed_django.models.job import Ending, Job
from pgembed_django.queue import jobs, rollups
from pgembed_django.queue.chores import Chore, Chores, attempt
from pgembed_django.queue.handler import Handler

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
            Chore(PRUNE_SECONDS, self.prune),
        ]
        theirs = [handler.chores(self._stopping.is_set) for handler in handlers]
        short = [chore for few, _ in theirs for chore in few]
        long = [chore for _, few in theirs for chore in few]
        self._threads = [
            Chores(name, chores, using=using, wake=wake, stopping=self._stopping)
            for name, chores in (("keeper", [*ours, *short]), ("builder", long))
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
            specs = [spec for handler in self.handlers for spec in handler.specs]
            recalled = jobs.recall(
                specs, lease_seconds=self.settings.lease_seconds, using=self.using
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
        found = 0
        for handler in self.handlers:
            page: str | None = ""
            while page is not None and found < MAX_GAPS and not self._stopping.is_set():
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
                page = gaps.next_page or None
        self._fail_unknown()
        return found

    def _fail_unknown(self) -> None:
        known = {spec for handler in self.handlers for spec in handler.known}
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
