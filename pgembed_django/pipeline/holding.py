"""The units a worker holds, and how they end when they do not succeed."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from pgembed_django import conf, events, rollups, signature, text
from pgembed_django.models import Ending
from pgembed_django.pipeline.units import Part, Unit, by_spec
from pgembed_django.queue import jobs
from pgembed_django.queue.jobs import Claim
from pgembed_django.specs import Spec

MAX_BACKOFF_SECONDS = 3600
MAX_BUSY_ENDINGS = 3
MAX_CLAIMS = 10
"""How often a job may be claimed before what may pass counts as an attempt: each job ends."""


class _QueuedEnd(NamedTuple):
    """How a job ends in the next round. Without an error it is given back."""

    claim: Claim
    end: Callable[[Claim], Ending]
    error: str | None


class Holding:
    """Units by job id. A unit that is not here is no longer worked on."""

    def __init__(self, *, using: str, settings: conf.Settings) -> None:
        self.using = using
        self.settings = settings
        self.units: dict[int, Unit] = {}
        self.whole: dict[int, Unit] = {}
        """The units that can be stored: all their vectors have come."""
        self.without_text: dict[int, Unit] = {}
        """The units whose text could be stored before their vectors, the oldest first."""
        self.to_stage: list[tuple[Unit, Part]] = []
        """Parts with vectors of units that need more batches, or are about to be given back."""
        self.tally = rollups.Tally()
        self.failed = 0
        """How many jobs have failed for good."""
        self._endings: deque[_QueuedEnd] = deque()

    def __contains__(self, unit: Unit) -> bool:
        return self.units.get(unit.claim.id) is unit

    @property
    def is_empty(self) -> bool:
        """Whether no lease is held."""
        return not self.units and not self._endings

    @property
    def is_blocked(self) -> bool:
        """Whether an open writer keeps a job from ending: try again soon."""
        return bool(self._endings) or any(not unit.is_being_stored for unit in self.whole.values())

    def add(self, units: Iterable[Unit]) -> None:
        """Take in newly claimed units, which are not planned yet."""
        for unit in units:
            if unit.claim.id in self.units:
                self.drop([unit.claim.id])  # another job with that id: the table was reset
            self.units[unit.claim.id] = unit

    def look_at(self, unit: Unit) -> None:
        """Note whether a unit is whole now, and whether its text is stored."""
        job_id = unit.claim.id
        if self.units.get(job_id) is not unit:
            return
        if unit.is_whole:
            self.whole[job_id] = unit
        if unit.lacks_text:
            self.without_text[job_id] = unit
        else:
            self.without_text.pop(job_id, None)

    def unplanned(self, units: Iterable[Unit]) -> dict[Spec, list[Unit]]:
        """Return the units that are held but not planned yet, by spec."""
        return by_spec(unit for unit in units if unit in self and not unit.is_planned)

    def drop(self, job_ids: Iterable[int]) -> None:
        """Forget units that have succeeded or are lost."""
        for job_id in job_ids:
            self.units.pop(job_id, None)
            self.whole.pop(job_id, None)
            self.without_text.pop(job_id, None)

    def lose(self, job_ids: Iterable[int]) -> None:
        """Forget units whose jobs are another worker's now, or gone with their rows."""
        lost = [self.units[job_id].claim for job_id in job_ids if job_id in self.units]
        if lost:
            self.drop([claim.id for claim in lost])
            events.tell(events.LEASES_LOST, about=lost, count=len(lost))

    def heartbeat(self, *, after_outage: bool = False) -> None:
        """Renew every lease, and stop working on lost jobs.

        Those that were lost in an outage of the database were not lost by a crash.
        """
        claims = [unit.claim for unit in self.units.values()]
        claims += [queued.claim for queued in self._endings]
        if claims:
            held = jobs.heartbeat(
                claims, lease_seconds=self.settings.lease_seconds, using=self.using
            )
            if after_outage and held.lost:
                lost = [claim for claim in claims if claim.id in held.lost]
                jobs.absolve(lost, using=self.using)
            # A job that is gone may just have been completed.
            self.lose({one for one in held.lost if not self._is_being_stored(one)})

    def fail(self, unit: Unit, error: str) -> None:
        """Fail the unit's job without another attempt: its text cannot be embedded."""
        error = text.clean(error)
        self._end(unit, partial(jobs.fail, error=error, using=self.using), error=error)

    def retry(self, unit: Unit, error: str) -> None:
        """Spend an attempt of the unit's job: it is retried after a backoff, or fails."""
        error = text.clean(error)
        retry = partial(
            jobs.retry,
            error=error,
            max_attempts=self.settings.max_attempts,
            delay_seconds=self._backoff_seconds(unit.claim.attempts),
            using=self.using,
        )
        self._end(unit, retry, error=error)

    def put_off(self, unit: Unit, error: str) -> None:
        """Give a unit back that could not be stored, which was not its fault. Its vectors are kept.

        If that does not pass, attempts are spent in the end.
        """
        self.stage_vectors(unit)
        if unit.claim.token > MAX_CLAIMS:
            self.retry(unit, error)
        else:
            delay = self._backoff_seconds(unit.claim.token - 1)
            self.release(unit, delay_seconds=delay, reason=text.clean(error))

    def stage_vectors(self, unit: Unit) -> None:
        """Stage the vectors that a unit has, before it is given back because of its table."""
        unit.is_set_aside = True
        self.to_stage += [(unit, part) for part in unit.parts if part.vectors]

    def release(
        self, unit: Unit, *, delay_seconds: float = 0, reason: str = "", outages: int = 0
    ) -> None:
        """Give the unit's job back without spending an attempt."""
        release = partial(
            jobs.release,
            delay_seconds=delay_seconds,
            reason=reason,
            outages=outages,
            using=self.using,
        )
        self._end(unit, release)

    def give_up(self, spec: str, source_pk: str, error: str) -> None:
        """Count a crash of a unit whose code never returns, and give all others back.

        Only while the loop is in that code. Any thread may call it.
        """
        for queued in [*self._endings]:
            queued.end(queued.claim)
        for claim in [unit.claim for unit in self.units.values()]:
            if (claim.spec, claim.source_pk) == (spec, source_pk):
                most = self.settings.max_crashes
                jobs.reap_one(claim, error, max_crashes=most, using=self.using)
            else:
                jobs.release(claim, using=self.using)

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

    def _is_being_stored(self, job_id: int) -> bool:
        return job_id in self.units and self.units[job_id].is_being_stored

    def _note(self, claim: Claim, ending: Ending, error: str | None) -> None:
        """Count and log how a job ended. Without an error it was given back."""
        if error is not None:
            self.tally.ended(claim.spec, ending)
        if ending is Ending.FAILED:
            self.failed += 1
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

    def _backoff_seconds(self, times: int) -> float:
        backoff = self.settings.backoff_seconds * 2.0**times
        return min(backoff, MAX_BACKOFF_SECONDS) * random.uniform(0.75, 1.25)

    def _end(self, unit: Unit, end: Callable[[Claim], Ending], *, error: str | None = None) -> None:
        if unit in self:
            self.drop([unit.claim.id])
            self._endings.append(_QueuedEnd(unit.claim, end, error))
