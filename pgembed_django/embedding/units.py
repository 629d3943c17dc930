"""The units in progress: what is known of each, and what is to be saved of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pgembed_django import conf, events, faults
from pgembed_django.chunking import Chunk
from pgembed_django.embedding.pool import Outcomes, Pool, Sight
from pgembed_django.exceptions import ProviderError
from pgembed_django.models import Space
from pgembed_django.plan import Plan
from pgembed_django.providers.base import Embedded
from pgembed_django.queue.in_flight import InFlight
from pgembed_django.queue.jobs import Claim
from pgembed_django.spaces import LiveState
from pgembed_django.specs import Spec
from pgembed_django.store import Change


@dataclass(slots=True, eq=False)
class Part:
    """What one unit needs in one space. ``waiting`` holds the digests without a vector yet."""

    space: Space
    plan: Plan
    waiting: set[bytes]
    vectors: dict[bytes, Embedded] = field(default_factory=dict)
    has_waiting_text: bool = False
    """Its text is stored, its vectors are not yet."""
    is_staged: bool = False

    def is_live(self, live: Mapping[int, LiveState]) -> bool:
        """Whether its space is still kept fresh, and was all the time.

        A retired space may be pruned already. Chunks that the plan keeps may be gone from one that
        was reopened.
        """
        now = live.get(self.space.pk)
        return now is not None and now.retired_at == self.space.retired_at

    @property
    def lacks_text(self) -> bool:
        """Whether nothing is stored yet, so that full-text search could have the text."""
        return self.plan.is_new and bool(self.waiting) and not self.has_waiting_text


@dataclass(slots=True, eq=False)
class Unit:
    """A claimed job in progress. ``started`` is when it was claimed, by the worker's clock."""

    claim: Claim
    spec: Spec
    started: float
    parts: list[Part] = field(default_factory=list)
    planned_spaces: set[tuple[int, datetime | None]] = field(default_factory=set)
    """The spaces that were live then, each with the time at which it was last retired."""
    dropped_spaces: set[int] = field(default_factory=set)
    """The building spaces among those that it is stored without, as their model refuses or is down.
    """
    chunks: int = 0
    characters: int = 0
    """The length of its text, which is held until it is stored."""
    is_planned: bool = False
    is_gone: bool = False
    """The source row is gone, or no longer matches the condition: its stored chunks go too."""
    has_staged: bool = False
    is_stored: bool = False
    """What it had is stored, whether its job is completed or given back."""
    is_set_aside: bool = False
    """It is given back because it cannot be stored now: what it has is staged, even if whole."""

    def plan_for(self, live: Iterable[Space]) -> None:
        """Note the spaces that it is planned for."""
        self.planned_spaces = {(space.pk, space.retired_at) for space in live}

    @property
    def is_doubtful(self) -> bool:
        """Whether its provider went down while it had this text: it is sent alone."""
        return self.claim.outages > 0

    @property
    def is_whole(self) -> bool:
        """Whether all its vectors have come."""
        return self.is_planned and not any(part.waiting for part in self.parts)

    @property
    def lacks_text(self) -> bool:
        """Whether any part lacks its text."""
        return any(part.lacks_text for part in self.parts)

    @property
    def chunks_done(self) -> int:
        """How many chunks have their vectors in all spaces."""
        return self.chunks - max((len(part.waiting) for part in self.parts), default=0)

    @property
    def embedded(self) -> int:
        """How many chunks a provider embedded, in all spaces."""
        return sum(len(part.plan.embed) for part in self.parts)

    @property
    def reused(self) -> int:
        """How many chunks had vectors already."""
        return self.chunks * len(self.parts) - self.embedded

    def change(self, part: Part) -> Change:
        """Return what the store has to do for one part."""
        return Change(
            self.claim.source_pk, part.space.pk, part.plan, part.vectors, part.has_waiting_text
        )


class Stored(NamedTuple):
    """Units whose vectors were stored in one transaction, for metrics and traces."""

    units: Sequence[Unit]
    waited: Mapping[int, float]
    """How long each write among them waited for its vectors, in seconds, by job id."""


def by_spec(units: Iterable[Unit]) -> dict[Spec, list[Unit]]:
    """Return units by spec, in the given order."""
    found: defaultdict[Spec, list[Unit]] = defaultdict(list)
    for unit in units:
        found[unit.spec].append(unit)
    return found


class Wanted(NamedTuple):
    """One chunk to be embedded, for one part of one unit."""

    unit: Unit
    part: Part
    chunk: Chunk


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Chunks of several units, sent to one provider together. Without chunks: a plain word."""

    pool: Pool
    wanted: list[Wanted]
    future: Future[Outcomes]
    started: float
    sight: Sight | None = None


class Failure(NamedTuple):
    """A chunk that was not embedded, and the error that ends its unit."""

    unit: Unit
    part: Part
    pool: Pool
    outcome: ProviderError


class Units:
    """A unit that is not here is no longer worked on."""

    def __init__(self, held: InFlight, *, using: str, settings: conf.Settings) -> None:
        self.held = held
        self.using = using
        self.settings = settings
        self.by_id: dict[int, Unit] = {}
        self.without_text: dict[int, Unit] = {}
        """The units whose text could be stored before their vectors, the oldest first."""
        self.to_stage: list[tuple[Unit, Part]] = []
        """Parts with vectors of units that need more batches, or are about to be given back."""

    def __contains__(self, unit: Unit) -> bool:
        return self.by_id.get(unit.claim.id) is unit

    def add(self, units: Iterable[Unit]) -> None:
        """Take in newly claimed units, which are not planned yet."""
        self.by_id |= {unit.claim.id: unit for unit in units}

    def drop(self, job_ids: Iterable[int]) -> None:
        """Forget units that have ended or are lost."""
        for job_id in job_ids:
            self.by_id.pop(job_id, None)
            self.without_text.pop(job_id, None)

    def look_at(self, unit: Unit) -> None:
        """Note whether a unit is whole now, and whether its text is stored."""
        if unit not in self:
            return
        if unit.is_whole:
            self.held.finish(unit.claim, unit)
        if unit.lacks_text:
            self.without_text[unit.claim.id] = unit
        else:
            self.without_text.pop(unit.claim.id, None)

    def unplanned(self, units: Iterable[Unit]) -> dict[Spec, list[Unit]]:
        """Return the units that are held but not planned yet, by spec."""
        return by_spec(unit for unit in units if unit in self and not unit.is_planned)

    def fail(self, unit: Unit, error: str) -> None:
        """Fail the unit's job without another attempt: its text cannot be embedded."""
        self.held.fail(unit.claim, error)

    def retry(self, unit: Unit, error: str) -> None:
        """Spend an attempt of the unit's job: it is retried after a backoff, or fails."""
        self.held.retry(unit.claim, error)

    def put_off(self, unit: Unit, error: str) -> None:
        """Give a unit back that could not be stored, which was not its fault. Its vectors are kept.

        If that does not pass, attempts are spent in the end.
        """
        self.stage_vectors(unit)
        self.held.put_off(unit.claim, error)

    def release(
        self, unit: Unit, *, delay_seconds: float = 0, reason: str = "", outages: int = 0
    ) -> None:
        """Give the unit's job back without spending an attempt."""
        self.held.release(unit.claim, delay_seconds=delay_seconds, reason=reason, outages=outages)

    def stage_vectors(self, unit: Unit) -> None:
        """Stage the vectors that a unit has, before it is given back because of its table."""
        unit.is_set_aside = True
        self.to_stage += [(unit, part) for part in unit.parts if part.vectors]


RELEASED_SECONDS = 1.0
"""How soon units that were given back unread are tried again."""


class Quarantine:
    """The specs that are set aside, and why: a deploy is under way, or has failed.

    The other specs go on. A spec is taken up again once its tables fit.
    """

    def __init__(self, *, holding: Units) -> None:
        self.reasons: dict[Spec, str] = {}
        self._holding = holding

    def __contains__(self, spec: Spec) -> bool:
        return spec in self.reasons

    def __iter__(self) -> Iterator[Spec]:
        return iter(list(self.reasons))

    def add(self, spec: Spec, error: Exception) -> None:
        """Set a spec aside."""
        if spec not in self:
            events.tell(events.SPEC_SET_ASIDE, spec=spec.key, error=faults.said(error))
        self.reasons[spec] = f"{type(error).__name__}: {faults.said(error)}"

    def give_back(self, units: Iterable[Unit]) -> None:
        """Give their units back without spending an attempt. Their vectors so far are staged."""
        for unit in units:
            self._holding.stage_vectors(unit)
            self._holding.release(
                unit, delay_seconds=RELEASED_SECONDS, reason=self.reasons[unit.spec]
            )

    def release(self, spec: Spec) -> None:
        """Resume a spec."""
        del self.reasons[spec]
        events.tell(events.SPEC_TAKEN_UP, spec=spec.key)
