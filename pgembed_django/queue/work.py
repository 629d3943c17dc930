"""A handler's jobs, from claim to end. ``Work.step`` is the walk of one job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from django.db import DatabaseError, InterfaceError

from pgembed_django import conf, events
from pgembed_django.queue.completing import STOP_SECONDS, Completing
from pgembed_django.queue.handler import Handler, Setting
from pgembed_django.queue.in_flight import HeldJob, InFlight, State
from pgembed_django.queue.jobs import Lease


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
        setting = Setting(self.held, using, settings, wake, inline, clock)
        self.claiming = handler.claiming(setting, Lease(worker_id, settings.lease_seconds))
        handler.begin(setting)

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
        claims = self.claiming.up_to(limit)
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
        return self.claiming.next_due_seconds()

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
