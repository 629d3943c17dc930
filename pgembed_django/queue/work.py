"""A handler's jobs, from claim to end. ``Work.step`` is the walk of one job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from django.db import DatabaseError, InterfaceError

from pgembed_django import conf, events
from pgembed_django.queue import jobs
from pgembed_django.queue.completing import STOP_SECONDS, Completing
from pgembed_django.queue.handler import Handler, Ready, Setting
from pgembed_django.queue.in_flight import HeldJob, InFlight, State
from pgembed_django.queue.jobs import Claim, Lane, Lease

LOWEST_LANE_EVERY = 8
"""One claim in this many begins with the lowest lane, or a swap under load would never end."""

ANEW_SECONDS = 0.05
"""How long claims continue after the last one while there is more. Then one begins at the heads."""

SUSPICIOUS_EVERY = 8
"""One claim in this many looks for suspicious jobs first; the others only if they find nothing."""

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 120.0
"""How long other jobs wait at first, and at last, so that a suspect one can run alone."""


class Work:
    """Claims jobs for a handler, and ends them as it reports."""

    def __init__(
        self,
        handler: Handler,
        *,
        using: str,
        worker_id: int,
        settings: conf.Settings,
        wake: Callable[[], None] = lambda: None,
        inline: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.handler = handler
        self.held = InFlight(handler, using=using, settings=settings)
        self.completing = Completing(handler, self.held, wake=wake, inline=inline)
        self.has_more = False
        """Whether the last claim got as many as it wanted: other workers could help."""
        self._using = using
        self._lease = Lease(worker_id, settings.lease_seconds)
        self._clock = clock
        self._claims = 0
        self._ended: dict[tuple[str, int], Lane] = {}
        """Where the last claims ended, by lane. Jobs that were committed late or locked by a writer
        lie before that, or in lanes that no job kind of this code has. If it is empty, the next
        claim begins at every lane's head, and finds them."""
        self._anew_at = float("-inf")
        self._is_suspects_turn = False
        self._had_suspicious = False
        self._backoff = DrainBackoff()
        handler.begin(Setting(self.held, using, settings, wake, inline, clock))

    @property
    def completed(self) -> int:
        """How many jobs were completed."""
        return self.held.completed

    @property
    def is_waiting(self) -> bool:
        """Whether something in flight will wake the loop."""
        return self.completing.is_at_work or self.handler.is_waiting

    def step(self, *, claim: bool = True) -> bool:
        """Do one round. Return whether anything moved.

        The work that is furthest along goes first, so that it does not wait for newer work.
        """
        moved = self.handler.collect()
        moved |= self.completing.step()
        self.handler.save_progress()
        # Only now: a job that is given back resumes with what is saved.
        moved |= self.held.end_jobs()
        if claim:
            moved |= self.claim()
        moved |= self.handler.advance(may_begin=claim)
        return moved

    def claim(self) -> bool:
        """Claim as many jobs as the handler has room for. Return whether there were any."""
        self.handler.refresh()
        limit = self.handler.room
        if not limit:
            return False
        started = time.perf_counter()
        claims = self.claim_up_to(limit)
        if claims:
            milliseconds = (time.perf_counter() - started) * 1000
            events.tell(
                events.JOBS_CLAIMED, about=claims, count=len(claims), milliseconds=milliseconds
            )
        self.has_more = len(claims) >= limit
        self.held.add(claims)
        try:
            self.handler.take(claims)
        except (DatabaseError, InterfaceError):
            for claim in claims:
                self.held.release(claim)
            raise
        return bool(claims)

    def next_due_seconds(self) -> float | None:
        """Return in how many seconds the next claimable job is due."""
        return jobs.next_due_seconds(self.handler.ready().specs, using=self._using)

    def release_unsent(self) -> None:
        """Let the next round give back what is not worth waiting for."""
        awaited = self.handler.awaited()
        working = [job for job in self.held.jobs.values() if job.state is State.WORKING]
        self._give_back(job for job in working if job.claim.id not in awaited)

    def release(self) -> None:
        """Complete finished jobs, and give all others back without spending an attempt."""
        with suppress(DatabaseError, InterfaceError):
            self.completing.finish()
            self.completing.step()
            self.completing.finish()
        jobs = self.held.jobs.values()
        self._give_back(job for job in jobs if job.state is not State.COMPLETING)
        with suppress(DatabaseError, InterfaceError):
            self.handler.save_progress()
        self.held.end_jobs(seconds=STOP_SECONDS)  # there is no next round

    def close(self) -> None:
        """Let the threads end."""
        self.completing.close()
        self.handler.close()

    def _give_back(self, jobs: Iterable[HeldJob]) -> None:
        """Give jobs back without spending an attempt. What has come of them is saved."""
        claims = [job.claim for job in jobs]
        self.handler.leave(claim.id for claim in claims)
        for claim in claims:
            self.held.release(claim)

    # Which jobs to claim

    def claim_up_to(self, limit: int) -> list[Claim]:
        """Start due jobs: one that must run alone, or up to ``limit`` others."""
        ready = self.handler.ready()
        # Jobs that an open writer blocks are with no handler, and may stay for a long time.
        working = [job.claim for job in self.held.jobs.values() if not job.was_blocked]
        if any(claim.crashes for claim in working):
            return []
        if self._had_suspicious or self._claims % SUSPICIOUS_EVERY == 0:
            suspicious = self._claim_suspicious(ready, is_working=bool(working))
            if suspicious is not None:
                return suspicious
        claims = self._claim_in_lanes(ready.specs, limit)
        if not claims and ready.unstarted:
            claims = jobs.claim(
                ready.unstarted, limit=limit, lease=self._lease, only_new=True, using=self._using
            )
        return claims or self._claim_suspicious(ready, is_working=bool(working)) or []

    def _claim_in_lanes(self, specs: Sequence[str], limit: int) -> list[Claim]:
        """Claim from where the last claim ended, or if that fails, and at times, from the heads."""
        self._claims += 1
        lowest_first = self._claims % LOWEST_LANE_EVERY == 0
        claims = []
        if self._ended and self._clock() < self._anew_at:
            known = [
                (spec, priority)
                for spec in specs
                for priority in jobs.priorities(self.handler.specs[spec])
            ]
            claims = jobs.claim_on(
                [self._ended.get(lane) or Lane(*lane) for lane in known],
                limit=limit,
                lease=self._lease,
                lowest_first=lowest_first,
                using=self._using,
            )
        if not claims:
            self._ended = {}
            self._anew_at = self._clock() + ANEW_SECONDS
            claims = jobs.claim(
                specs, limit=limit, lease=self._lease, lowest_first=lowest_first, using=self._using
            )
        if len(claims) < limit:
            self._ended = {}  # there is nothing to go on with
        else:
            # In order: the last one of each lane is kept.
            last = {(one.spec, one.priority): one for one in claims}
            self._ended |= {lane: Lane(*lane, one.run_at, one.id) for lane, one in last.items()}
        return claims

    def _claim_suspicious(self, ready: Ready, *, is_working: bool) -> list[Claim] | None:
        """Claim a job that must run alone.

        Returns None if none is due, and [] while held jobs must finish first.
        """
        due = jobs.suspicious_due(ready.specs, using=self._using)
        # A job that a worker held when it died is claimed alone, in turn with the others:
        # there may be hundreds of such jobs, and writes must not wait for all of them.
        self._is_suspects_turn = not self._is_suspects_turn
        self._had_suspicious = True
        if not due.suspect:
            self._backoff.renew()
        elif self._is_suspects_turn and self._backoff.lasts(self._clock()):
            if is_working:
                self._is_suspects_turn = False  # still theirs, once the others have ended
                return []
            suspects = jobs.claim_suspect(ready.specs, lease=self._lease, using=self._using)
            if suspects:
                self._backoff.renew()
                return suspects
            self._backoff.end(self._clock())  # an open writer has it
        doubtful = []
        if due.doubtful:
            doubtful = jobs.claim_doubtful(ready.specs, lease=self._lease, using=self._using)
        self._had_suspicious = bool(doubtful)
        return doubtful or None


class DrainBackoff:
    """Waits until no other job is held, so that a suspect runs alone, but not for ever.

    After a bounded time the other jobs go on for as long. Each wait is twice as long as the last
    one, so in the end all held jobs end within one.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew: there is nothing left to wait for."""
        self._seconds = FIRST_SECONDS
        self._since: float | None = None
        self._resumes_at = float("-inf")

    def lasts(self, now: float) -> bool:
        """Return whether to begin or keep waiting."""
        if now < self._resumes_at:
            return False
        if self._since is None:
            self._since = now
        if now - self._since >= self._seconds:
            self.end(now)
            return False
        return True

    def end(self, now: float) -> None:
        """Let the others go on: the wait was in vain."""
        self._since = None
        self._resumes_at = now + self._seconds
        self._seconds = min(2 * self._seconds, LONGEST_SECONDS)
