"""A handler's jobs, from claim to end. ``Work.step`` is the walk of one job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from django.db import DatabaseError, InterfaceError

from pgembed_django import conf, events
from pgembed_django.core.adapting import doubled
from pgembed_django.models.job import LANES
from pgembed_django.queue import jobs
from pgembed_django.queue.completing import STOP_SECONDS, Completing
from pgembed_django.queue.handler import Handler, Setting
from pgembed_django.queue.in_flight import HeldJob, InFlight, State
from pgembed_django.queue.jobs import Claim, Lane, Lease

LOWEST_LANE_EVERY = 8
"""One claim in this many begins with the lowest lane, or a swap under load would never end."""

ANEW_SECONDS = 0.05
"""How long claims continue after the last one while there is more. Then one begins at the heads."""

SUSPECTS_EVERY = 8
"""One claim in this many looks for a suspect first. While there are some, each other one does."""

MAX_DRAIN_SECONDS = 120.0
"""The longest wait for the held jobs, and after that for a suspect."""


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
        self._drain_ends_at: float | None = None
        self._drain_seconds = 0.0
        self._others_until = float("-inf")
        self._suspects_from = 0
        """The claim that looks for a suspect first."""
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
        """Start due jobs: one suspect, or up to ``limit`` others.

        A suspect and the others take turns, as there may be hundreds of suspects. It waits for the
        held jobs to end, and nothing is claimed beside one with which a worker died.
        """
        ready = self.handler.ready()
        # Jobs that an open writer blocks are with no handler, and may stay for a long time.
        working = [job.claim for job in self.held.jobs.values() if not job.was_blocked]
        if [claim for claim in working if claim.crashes]:
            return []
        if self._claims >= self._suspects_from and self._clock() >= self._others_until:
            suspects = self._claim_suspect(ready.specs, is_working=bool(working))
            if suspects:
                self._suspects_from = self._claims + 1
                self._drain_ends_at, self._drain_seconds = None, 0.0
                return suspects
            if suspects is not None and self._drains():
                return []
            self._suspects_from = self._claims + SUSPECTS_EVERY
        claims = self._claim_in_lanes(ready.specs, limit)
        if not claims and ready.unstarted:
            claims = jobs.claim(
                ready.unstarted, limit=limit, lease=self._lease, only_new=True, using=self._using
            )
        return claims or self._claim_suspect(ready.specs, is_working=bool(working)) or []

    def _drains(self) -> bool:
        """Return whether to wait for the held jobs, so that a suspect can run alone.

        For a second at first, then twice as long each time. In between the others go on for as
        long: one long job must not stop them all.
        """
        now = self._clock()
        if self._drain_ends_at is None:
            self._drain_seconds = doubled(self._drain_seconds, first=1.0, most=MAX_DRAIN_SECONDS)
            self._drain_ends_at = now + self._drain_seconds
        if now < self._drain_ends_at:
            return True
        self._drain_ends_at = None
        self._others_until = now + self._drain_seconds
        return False

    def _claim_suspect(self, specs: Sequence[str], *, is_working: bool) -> list[Claim] | None:
        """Claim a suspect. Return None if there is none, and [] if held jobs must end first."""
        if not jobs.is_suspect_due(specs, using=self._using):
            return None
        if is_working:
            return []
        return jobs.claim_suspect(specs, lease=self._lease, using=self._using) or None

    def _claim_in_lanes(self, specs: Sequence[str], limit: int) -> list[Claim]:
        """Claim from where the last claim ended, or if that fails, and at times, from the heads."""
        self._claims += 1
        lowest_first = self._claims % LOWEST_LANE_EVERY == 0
        claims = []
        if self._ended and self._clock() < self._anew_at:
            priorities, of_kinds = self.handler.specs, {*LANES.values()}
            known = [(spec, priorities[spec] + of_kind) for spec in specs for of_kind in of_kinds]
            claims = jobs.claim(
                specs,
                lanes=[self._ended.get(lane) or Lane(*lane) for lane in known],
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
