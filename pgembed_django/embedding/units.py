"""The units in progress: how far each has come, and what it needs in each space."""

from __future__ import annotations

import enum
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from pgembed_django import conf, events, spaces
from pgembed_django.chunking import Chunk
from pgembed_django.core import faults
from pgembed_django.declaration.specs import Spec
from pgembed_django.exceptions import ProviderError
from pgembed_django.models import Space
from pgembed_django.providers.base import Embedded
from pgembed_django.queue import jobs
from pgembed_django.queue.in_flight import InFlight
from pgembed_django.queue.jobs import Claim, Paused
from pgembed_django.spaces import LiveState

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pgembed_django.embedding.planner import Plan
    from pgembed_django.embedding.pool import Outcomes, Pool, Sight

READ_SECONDS = 5.0
"""How long a worker may miss which spaces others have opened, and what they have paused."""

RELEASED_SECONDS = 1.0
"""How soon units that were given back unread are tried again."""


class State(enum.Enum):
    """How far a unit has come."""

    UNREAD = enum.auto()
    PLANNED = enum.auto()
    """Some of its parts may still wait for vectors."""
    GONE = enum.auto()
    """The source row is gone, or no longer matches the condition: its stored chunks go too."""
    SET_ASIDE = enum.auto()
    """It is given back because it cannot be stored now: what it has is staged, even if whole."""
    STORED = enum.auto()
    """What it had is stored, whether its job is completed or given back."""


class Failure(NamedTuple):
    """Why a part does not get all of its vectors."""

    pool: Pool
    error: ProviderError


@dataclass(slots=True, eq=False)
class Part:
    """What one unit needs in one space. ``waiting`` holds the digests without a vector yet."""

    source_pk: str
    space: Space
    plan: Plan
    waiting: set[bytes]
    vectors: dict[bytes, Embedded] = field(default_factory=dict)
    in_flight: int = 0
    """How many of its chunks are with the provider."""
    failure: Failure | None = None
    """No more of its chunks are sent. Its unit ends once nothing else of it is awaited."""
    has_waiting_text: bool = False
    """Its text is stored, its vectors are not yet."""

    @property
    def space_id(self) -> int:
        """The id of its space."""
        return int(self.space.pk)

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to wait for: it is whole, or has failed."""
        return not self.waiting or (self.failure is not None and not self.in_flight)

    @property
    def lacks_text(self) -> bool:
        """Whether nothing is stored yet, so that full-text search could have the text."""
        return self.plan.is_new and bool(self.waiting) and not self.has_waiting_text

    def is_live(self, live: Mapping[int, LiveState]) -> bool:
        """Whether its space is still kept fresh, and was all the time.

        A retired space may be pruned already. Chunks that the plan keeps may be gone from one that
        was reopened.
        """
        now = live.get(self.space_id)
        return now is not None and now.retired_at == self.space.retired_at


@dataclass(slots=True, eq=False)
class Unit:
    """A claimed job in progress."""

    claim: Claim
    spec: Spec
    state: State = State.UNREAD
    parts: list[Part] = field(default_factory=list)
    planned_spaces: set[tuple[int, datetime | None]] = field(default_factory=set)
    """The spaces that were live then, each with the time at which it was last retired."""
    dropped_spaces: set[int] = field(default_factory=set)
    """The building spaces among those that it is stored without, as their model refuses or is down.
    """
    chunks: int = 0
    characters: int = 0
    """The length of its text, which is held until it is stored."""
    has_staged: bool = False
    text_due: float = 0.0
    """When to store its text without its vectors, by the worker's clock."""

    @property
    def lacks_text(self) -> bool:
        """Whether any part lacks its text, and the spec stores what full-text search reads."""
        return self.spec.stores_words and any(part.lacks_text for part in self.parts)

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

    def drop(self, part: Part) -> None:
        """Go on without a part: the reconciler brings it back."""
        self.parts.remove(part)
        self.dropped_spaces.add(part.space_id)


class Stored(NamedTuple):
    """Units whose vectors were stored in one transaction, for metrics and traces."""

    units: Sequence[Unit]
    waited: Mapping[int, float]
    """How long each write among them waited for its vectors, in seconds, by job id."""


class Wanted(NamedTuple):
    """One chunk to be embedded, for one part of one unit."""

    unit: Unit
    part: Part
    chunk: Chunk


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Chunks of several units, sent to one provider together. Without chunks: a health check."""

    pool: Pool
    wanted: list[Wanted]
    future: Future[Outcomes]
    started: float
    sight: Sight | None = None


def by_spec(units: Iterable[Unit]) -> dict[Spec, list[Unit]]:
    """Return units by spec, in the given order."""
    found: defaultdict[Spec, list[Unit]] = defaultdict(list)
    for unit in units:
        found[unit.spec].append(unit)
    return found


class Units:
    """The units in progress by job id, and the specs in quarantine.

    A unit that is not here is no longer worked on. A quarantined spec's tables do not fit: a deploy
    is under way, or has failed. The other specs go on.
    """

    def __init__(self, held: InFlight, *, using: str, settings: conf.Settings) -> None:
        self.held = held
        self.using = using
        self.settings = settings
        self.by_id: dict[int, Unit] = {}
        self.failed: dict[int, Unit] = {}
        """Units with failed parts that are to end now."""
        self.quarantined: dict[Spec, str] = {}
        """The reasons."""

    def __contains__(self, unit: Unit) -> bool:
        return self.by_id.get(unit.claim.id) is unit

    def settle(self, unit: Unit) -> None:
        """Finish a unit, or note that it has failed, if nothing of it is awaited any more."""
        if unit not in self or not all(part.is_settled for part in unit.parts):
            return
        if any(part.failure for part in unit.parts):
            self.failed[unit.claim.id] = unit
        else:
            self.held.finish(unit.claim, unit)

    def retry(self, unit: Unit, error: Exception) -> None:
        """Spend an attempt of a unit that the database refuses."""
        self.held.retry(unit.claim, f"{type(error).__name__}: {faults.said(error)}")

    def give_back(self, units: Iterable[Unit]) -> None:
        """Give units back for a while, without spending an attempt."""
        for unit in units:
            reason = self.quarantined.get(unit.spec, "")
            self.held.release(unit.claim, delay_seconds=RELEASED_SECONDS, reason=reason)

    def quarantine(self, spec: Spec, error: Exception) -> None:
        """Leave a spec alone until its tables fit."""
        if spec not in self.quarantined:
            events.tell(events.SPEC_SET_ASIDE, spec=spec.key, error=faults.said(error))
        self.quarantined[spec] = f"{type(error).__name__}: {faults.said(error)}"

    def resume(self, spec: Spec) -> None:
        """Take a spec up again."""
        del self.quarantined[spec]
        events.tell(events.SPEC_TAKEN_UP, spec=spec.key)


class Live:
    """The live spaces of each spec and what a person has paused, as last read."""

    def __init__(
        self,
        specs: Mapping[str, Spec],
        *,
        using: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.specs = specs
        self.paused = Paused({}, {})
        self._using = using
        self._clock = clock
        self.spaces: Mapping[str, Sequence[Space]] = {}
        """The spaces to plan each spec's units for, the active one first."""
        self._read_at = float("-inf")

    def __iter__(self) -> Iterator[Space]:
        return chain.from_iterable(self.spaces.values())

    def read_if_old(self) -> bool:
        """Read again after a while. Return whether that was done."""
        if self._clock() - self._read_at < READ_SECONDS:
            return False
        self.spaces = spaces.live_of(self.specs.values(), using=self._using)
        self.paused = jobs.paused(using=self._using)
        self._read_at = self._clock()
        return True

    def outdate(self) -> None:
        """Read again next round: a space was opened after some units were planned."""
        self._read_at = float("-inf")
