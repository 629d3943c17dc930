"""Claim due jobs for a handler: from the lanes, or one that must run alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from django.db import DatabaseError, InterfaceError

from pgembed_django import events
from pgembed_django.queue import jobs
from pgembed_django.queue.handler import Handler, Ready
from pgembed_django.queue.in_flight import InFlight
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


class Claiming:
    """Gives a handler as many jobs as it has room for."""

    def __init__(
        self,
        handler: Handler,
        held: InFlight,
        *,
        worker_id: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.has_more = False
        """Whether the last claim got as many as it wanted: other workers could help."""
        self._handler = handler
        self._held = held
        self._lease = Lease(worker_id, held.settings.lease_seconds)
        self._clock = clock
        self._claims = 0
        self._cursor = ClaimCursor(handler)
        self._anew_at = float("-inf")
        self._is_suspects_turn = False
        self._backoff = DrainBackoff()
        self._had_suspicious = False

    def claim(self) -> bool:
        """Claim jobs. Return whether there were any."""
        self._handler.refresh()
        limit = self._handler.room
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
        self._held.add(claims)
        try:
            self._handler.take(claims)
        except (DatabaseError, InterfaceError):
            for claim in claims:
                self._held.release(claim)
            raise
        return bool(claims)

    def next_due_seconds(self) -> float | None:
        """Return in how many seconds the next claimable job is due."""
        return jobs.next_due_seconds(self._handler.ready().specs, using=self._held.using)

    def claim_up_to(self, limit: int) -> list[Claim]:
        """Start due jobs: one that must run alone, or up to ``limit`` others."""
        ready, using = self._handler.ready(), self._held.using
        # Jobs that an open writer blocks are with no handler, and may stay for a long time.
        is_working = False
        for job in self._held.jobs.values():
            if not job.was_blocked:
                if job.claim.crashes:
                    return []
                is_working = True
        if self._had_suspicious or self._claims % SUSPICIOUS_EVERY == 0:
            suspicious = self._claim_suspicious(ready, is_working=is_working)
            if suspicious is not None:
                return suspicious
        claims = self._claim_in_lanes(ready.specs, limit)
        if not claims and ready.unstarted:
            claims = jobs.claim(
                ready.unstarted, limit=limit, lease=self._lease, only_new=True, using=using
            )
        return claims or self._claim_suspicious(ready, is_working=is_working) or []

    def _claim_in_lanes(self, specs: Sequence[str], limit: int) -> list[Claim]:
        """Claim from where the last claim ended, or if that fails, and at times, from the heads."""
        using = self._held.using
        self._claims += 1
        lowest_first = self._claims % LOWEST_LANE_EVERY == 0
        claims = []
        if self._clock() < self._anew_at and (lanes := self._cursor.to_go_on(specs)):
            claims = jobs.claim_on(
                lanes, limit=limit, lease=self._lease, lowest_first=lowest_first, using=using
            )
        if not claims:
            self._cursor.begin_anew()
            self._anew_at = self._clock() + ANEW_SECONDS
            claims = jobs.claim(
                specs, limit=limit, lease=self._lease, lowest_first=lowest_first, using=using
            )
        self._cursor.note(claims, has_more=len(claims) >= limit)
        return claims

    def _claim_suspicious(self, ready: Ready, *, is_working: bool) -> list[Claim] | None:
        """Claim a job that must run alone.

        Returns None if none is due, and [] while held jobs must finish first.
        """
        using = self._held.using
        due = jobs.suspicious_due(ready.specs, using=using)
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
            suspects = jobs.claim_suspect(ready.specs, lease=self._lease, using=using)
            if suspects:
                self._backoff.renew()
                return suspects
            self._backoff.end(self._clock())  # an open writer has it
        doubtful = []
        if due.doubtful:
            doubtful = jobs.claim_doubtful(ready.specs, lease=self._lease, using=using)
        self._had_suspicious = bool(doubtful)
        return doubtful or None


class ClaimCursor:
    """Where the last claims ended. At first nowhere: the next begins at every lane's head.

    Jobs that were committed late or locked by a writer lie before that, and jobs may be in lanes
    that no job kind of this code has. A claim that begins anew finds them.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._ended: dict[tuple[str, int], Lane] = {}

    def to_go_on(self, specs: Sequence[str]) -> list[Lane]:
        """Return the lanes of some specs, each from where its claims ended. Empty: begin anew."""
        if not self._ended:
            return []
        of_specs = self._handler.specs
        known = [(spec, one) for spec in specs for one in jobs.priorities(of_specs[spec])]
        return [self._ended.get(lane) or Lane(*lane) for lane in known]

    def note(self, claims: Sequence[Claim], *, has_more: bool) -> None:
        """Note where a claim ended. If there was no more, there is nothing to go on with."""
        if not has_more:
            self.begin_anew()
            return
        # In order: the last one of each lane is kept.
        last = {(claim.spec, claim.priority): claim for claim in claims}
        self._ended |= {lane: Lane(*lane, one.run_at, one.id) for lane, one in last.items()}

    def begin_anew(self) -> None:
        """Let the next claim begin at the heads."""
        self._ended = {}


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
