"""The jobs that a worker holds, from claim to end. Nothing else keeps these books."""

from __future__ import annotations

import enum
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pgembed_django import conf, events
from pgembed_django.core import signature, text
from pgembed_django.models.job import Ending
from pgembed_django.queue import jobs, rollups
from pgembed_django.queue.jobs import Claim

if TYPE_CHECKING:
    from pgembed_django.queue.handler import Handler

MAX_BACKOFF_SECONDS = 3600
MAX_BUSY_ENDINGS = 3
MAX_CLAIMS = 10
"""After so many claims, an error that may pass costs an attempt as well, so that each job ends."""


class State(enum.Enum):
    """How far a held job has come."""

    WORKING = enum.auto()
    """Its handler has it."""
    FINISHED = enum.auto()
    """Its result can be written."""
    COMPLETING = enum.auto()
    """A thread is writing its result."""


@dataclass(slots=True, eq=False)
class HeldJob:
    """A job that this worker holds, and the result that its handler has given."""

    claim: Claim
    state: State = State.WORKING
    result: Any = None
    was_blocked: bool = False
    """Whether an open writer has kept it from being completed."""


class _QueuedEnd(NamedTuple):
    """How a job ends in the next round. Without an error it is given back."""

    claim: Claim
    end: Callable[[Claim], Ending]
    error: str | None


class InFlight:
    """Held jobs by id. A job that is not here is no longer worked on."""

    def __init__(self, handler: Handler, *, using: str, settings: conf.Settings) -> None:
        self.using = using
        self.table = handler.table
        self.settings = settings
        self.jobs: dict[int, HeldJob] = {}
        self.finished: dict[int, HeldJob] = {}
        """Those whose results can be written, or are being written."""
        self.tally = rollups.Tally()
        self.failed = 0
        """How many jobs have failed for good."""
        self.completed = 0
        self.waiting = 0
        """How many finished jobs wait while others are being completed."""
        self._handler = handler
        self._endings: deque[_QueuedEnd] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether no lease is held."""
        return not self.jobs and not self._endings

    @property
    def is_blocked(self) -> bool:
        """Whether an open writer keeps a job from ending: try again soon."""
        return bool(self._endings) or any(
            job.state is not State.COMPLETING for job in self.finished.values()
        )

    def holds(self, claim: Claim) -> bool:
        """Return whether a claim is still held and has not ended."""
        held = self.jobs.get(claim.id)
        return held is not None and held.claim == claim

    def add(self, claims: Iterable[Claim]) -> None:
        """Take in new claims."""
        for claim in claims:
            if claim.id in self.jobs:
                self.drop([claim.id])  # another job with that id: the table was reset
            self.jobs[claim.id] = HeldJob(claim)

    def finish(self, claim: Claim, result: Any = None) -> None:
        """Let a job be completed, and its result be written in the same transaction."""
        job = self.jobs.get(claim.id)
        if job is not None and job.claim == claim and job.state is State.WORKING:
            job.state, job.result = State.FINISHED, result
            self.finished[claim.id] = job

    def completed_itself(self, claim: Claim) -> None:
        """Forget a job that its handler has completed."""
        if self.holds(claim):
            self.completed += 1
            self.drop([claim.id])

    def drop(self, job_ids: Iterable[int]) -> None:
        """Forget jobs that have ended or are lost."""
        dropped = [job_id for job_id in job_ids if self.jobs.pop(job_id, None)]
        for job_id in dropped:
            self.finished.pop(job_id, None)
        self._handler.drop(dropped)

    def lose(self, job_ids: Iterable[int]) -> None:
        """Forget jobs that are another worker's now, or gone with their rows."""
        lost = [self.jobs[job_id].claim for job_id in job_ids if job_id in self.jobs]
        if lost:
            self.drop([claim.id for claim in lost])
            events.tell(events.LEASES_LOST, about=lost, count=len(lost))

    def heartbeat(self, *, after_outage: bool = False) -> None:
        """Renew every lease, and stop working on lost jobs.

        Those that were lost in an outage of the database were not lost by a crash.
        """
        claims = [job.claim for job in self.jobs.values()]
        claims += [queued.claim for queued in self._endings]
        if claims:
            held = jobs.heartbeat(
                claims,
                lease_seconds=self.settings.lease_seconds,
                using=self.using,
                table=self.table,
            )
            if after_outage and held.lost:
                lost = [claim for claim in claims if claim.id in held.lost]
                jobs.absolve(lost, using=self.using, table=self.table)
            # A job that is gone may just have been completed.
            done = {key for key, job in self.jobs.items() if job.state is State.COMPLETING}
            done.update(self._handler.completing_itself)
            self.lose(held.lost - done)

    def fail(self, claim: Claim, error: str) -> None:
        """Fail a job without another attempt."""
        self._end(claim, jobs.fail, error=error, also=self._handler.failing(claim))

    def retry(
        self,
        claim: Claim,
        error: str,
        *,
        max_attempts: int | None = None,
        backoff_seconds: float | None = None,
    ) -> None:
        """Spend an attempt of a job: it is retried after a backoff, or fails.

        Unless given, the limits are those of the settings.
        """
        self._end(
            claim,
            jobs.retry,
            error=error,
            max_attempts=max_attempts or self.settings.max_attempts,
            delay_seconds=self._backoff_seconds(claim.attempts, first=backoff_seconds),
            also=self._handler.failing(claim),
        )

    def crash(self, claim: Claim, error: str) -> None:
        """Count a crash of a job: the process that ran it has died. It runs alone next."""
        self._end(
            claim,
            jobs.reap_one,
            error=error,
            max_crashes=self.settings.max_crashes,
            also=self._handler.failing(claim),
        )

    def end(self, claim: Claim, end: Callable[..., Ending]) -> None:
        """Let the next round end a job in a way of its handler's own."""
        self._end(claim, end)

    def put_off(self, claim: Claim, error: str) -> None:
        """Give a job back after an error that was not its fault.

        If that does not pass, attempts are spent in the end.
        """
        if claim.token > MAX_CLAIMS:
            self.retry(claim, error)
        else:
            delay = self._backoff_seconds(claim.token - 1)
            self.release(claim, delay_seconds=delay, reason=error)

    def release(
        self, claim: Claim, *, delay_seconds: float = 0, reason: str = "", outages: int = 0
    ) -> None:
        """Give a job back without spending an attempt."""
        reason = text.clean(reason)
        self._end(claim, jobs.release, delay_seconds=delay_seconds, reason=reason, outages=outages)

    def give_up(self, spec: str, source_pk: str, error: str) -> None:
        """Count a crash of the job whose code never returns, and give all others back.

        Those that were claimed many times count a crash, too: one of them may be what the loop is
        stuck at. Only while the loop is stuck. Any thread may call it.
        """
        for queued in [*self._endings]:
            queued.end(queued.claim)
        for claim in [job.claim for job in self.jobs.values()]:
            is_culprit = (claim.spec, claim.source_pk) == (spec, source_pk)
            if is_culprit or claim.token > MAX_CLAIMS:
                most = self.settings.max_crashes
                jobs.reap_one(claim, error, max_crashes=most, using=self.using, table=self.table)
            else:
                jobs.release(claim, using=self.using, table=self.table)

    def end_jobs(self, *, seconds: float = 0.0) -> bool:
        """Run the endings, one job per transaction. A busy one is tried again next time.

        Each busy one costs a wait, and an open writer may hold hundreds. So after both a few
        of them and ``seconds``, the rest waits for the next round too.
        """
        ended = busy = 0
        until = time.monotonic() + seconds
        for _ in range(len(self._endings)):
            if busy >= MAX_BUSY_ENDINGS and time.monotonic() >= until:
                break
            claim, end, error = self._endings[0]
            ending = end(claim)
            self._note(claim, ending, error)
            if ending is Ending.BUSY:
                busy += 1
                self._endings.rotate(-1)
            else:
                self._endings.popleft()
                ended += 1
        return ended > 0

    def _note(self, claim: Claim, ending: Ending, error: str | None) -> None:
        """Count and log how a job ended. Without an error it was given back."""
        if ending is Ending.FAILED:
            self.failed += 1
            self.tally.failed(claim.spec)
            events.tell(
                events.JOB_FAILED,
                about=claim,
                spec=claim.spec,
                source_pk=claim.source_pk,
                job_id=claim.id,
                signature=signature.of(error or ""),
            )
        elif ending is Ending.REQUEUED and error is not None:
            events.tell(
                events.JOB_RETRIED,
                about=claim,
                spec=claim.spec,
                source_pk=claim.source_pk,
                job_id=claim.id,
                attempts=claim.attempts + 1,
                signature=signature.of(error),
            )
        elif ending is not Ending.BUSY:
            events.tell(
                events.JOB_RELEASED,
                about=claim,
                spec=claim.spec,
                source_pk=claim.source_pk,
                job_id=claim.id,
                result=ending,
            )

    def _backoff_seconds(self, times: int, *, first: float | None = None) -> float:
        backoff = (self.settings.backoff_seconds if first is None else first) * 2.0**times
        return min(backoff, MAX_BACKOFF_SECONDS) * random.uniform(0.75, 1.25)

    def _end(
        self, claim: Claim, end: Callable[..., Ending], *, error: str | None = None, **options: Any
    ) -> None:
        """Let the next round end a job. Without an error it is given back."""
        if not self.holds(claim):
            return
        if error is not None:
            options["error"] = error = text.clean(error)
        self.drop([claim.id])
        self._endings.append(
            _QueuedEnd(claim, partial(end, using=self.using, table=self.table, **options), error)
        )
