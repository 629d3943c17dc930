"""A handler's jobs, from claim to end. ``Work.step`` is the walk of one job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from django.db import DatabaseError, InterfaceError

from pgembed_django import conf
from pgembed_django.queue.claiming import Claiming
from pgembed_django.queue.completing import STOP_SECONDS, Completing
from pgembed_django.queue.handler import Handler, Setting
from pgembed_django.queue.in_flight import HeldJob, InFlight, State


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
        self.claiming = Claiming(handler, self.held, worker_id=worker_id, clock=clock)
        self.completing = Completing(handler, self.held, wake=wake, inline=inline)
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
            moved |= self.claiming.claim()
        moved |= self.handler.advance(may_begin=claim)
        return moved

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
