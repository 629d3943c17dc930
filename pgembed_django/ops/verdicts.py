"""Judge the state of a spec, with reasons that a person on call can act on. Pure.

The reasons are not translated, not even in the admin, so that they match `embed_status`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from pgembed_django.models.job import CHANGES
from pgembed_django.ops.formatting import duration
from pgembed_django.ops.queue import NONE, Backlog, Count
from pgembed_django.ops.workers import ProviderStatus
from pgembed_django.spaces import Coverage, are_few

State = Literal["fresh", "indexing", "degraded", "stalled"]
STATES: tuple[State, ...] = get_args(State)
"""From best to worst."""

LATE_SECONDS = 60.0
"""A change that is older than this is late. Usually it takes a second."""

STUCK_SECONDS = 300.0
"""A spec is stalled if a change waits this long while nothing is completed."""

WORKER = "Start manage.py embed_worker."
DRIFT = "because its tables do not match the code"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of a spec, with the reason in sentences for a person who is on call."""

    state: State
    reason: str


NOT_JUDGED = Verdict("fresh", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceStatus:
    """The status of a live space. ``coverage`` is None if it could not be read."""

    id: int
    provider: str
    model: str
    dimensions: int
    is_active: bool
    created_at: datetime
    coverage: Coverage | None
    eta_seconds: float | None
    """Time until it is full at the present rate. None: full, unknown, or nothing is being done."""
    exchanged: str
    """How a worker has seen that its model is another one now. Empty: it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecStatus:
    """The status of one spec."""

    key: str
    verdict: Verdict = NOT_JUDGED
    active: SpaceStatus | None
    building: SpaceStatus | None
    backlog: tuple[Backlog, ...]
    """One for each kind that has pending jobs, the most urgent first."""
    running: Count
    oldest_change_seconds: float | None
    """Age of the oldest write or manual retry that is pending or running."""
    open_failures: Count
    dismissed: Count
    """Dismissed failures whose rows have not been embedded since."""
    units_per_second: float
    """Units completed per second, the mean of the last minutes."""
    p50_seconds: float | None
    p99_seconds: float | None
    """p50 and p99 of the time from write to vector in the last minutes."""
    eta_seconds: float | None
    """Time until nothing is pending at the present rate. None: nothing is being completed."""
    workers: int
    """How many live workers work on it."""
    paused_by: str
    """Who has paused it by hand. Empty: nobody."""

    @property
    def waiting(self) -> Count:
        """The number of pending jobs of all kinds."""
        return sum((one.waiting for one in self.backlog), NONE)

    @property
    def changes(self) -> Count:
        """How many of the pending jobs are changes."""
        return sum((one.waiting for one in self.backlog if one.kind in CHANGES), NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that a verdict depends on."""

    spec: SpecStatus
    """The spec's status, not judged yet."""
    provider: ProviderStatus | None
    """The provider of the active space. None: nothing has been embedded yet."""
    next_provider: ProviderStatus | None
    """The provider of the space that is being built."""
    is_undeclared: bool
    """Whether the settings declare another space than the one that is being built."""
    database: str
    """The alias of the spec's database."""
    has_tables: bool
    silent_triggers: int
    """How many of the spec's triggers are missing or disabled."""
    aside: tuple[str, ...]
    """The reasons of the workers that have set the spec aside, one each."""
    completed: int
    """How many units were completed in the last minutes."""

    @property
    def paused(self) -> str:
        """Who paused the spec, or else its provider, in words. Empty: neither is paused."""
        if self.spec.paused_by:
            return f"Paused by {self.spec.paused_by}"
        by = self.provider.paused_by if self.provider else ""
        return f"The provider is paused by {by}" if by else ""

    @property
    def down(self) -> str:
        """Why no worker can reach the provider. Empty: at least one can."""
        is_down = self.provider and self.provider.is_down and not self.exchanged
        return self.provider.reason if self.provider and is_down else ""

    @property
    def exchanged(self) -> str:
        """What searches do because their model was exchanged. Empty: it was not."""
        if self.spec.active is None or not self.spec.active.exchanged:
            return ""
        if new := self.spec.building:
            covered = f" ({new.coverage})" if new.coverage else ""
            return (
                f"Searches use full text only until the new space {new.id} is full{covered}: the "
                f"server has another model than that of space {self.spec.active.id}."
            )
        return f"Searches use full text only. {self.spec.active.exchanged}"

    @property
    def is_filling(self) -> bool:
        """Whether a new space is built, and its provider is asked."""
        return self.next_provider is not None and not self.next_provider.is_away

    @property
    def unreachable_for(self) -> int:
        """How many workers cannot reach the provider."""
        return len(self.provider.out_of_reach_of) if self.provider else 0

    @property
    def is_aside(self) -> bool:
        """Whether all live workers have set the spec aside."""
        return 0 < self.spec.workers == len(self.aside)

    @property
    def coverage(self) -> Coverage | None:
        """The coverage of the active space."""
        return self.spec.active.coverage if self.spec.active else None

    @property
    def is_short(self) -> bool:
        """Whether a search misses more rows than have a dismissed failure."""
        return self.coverage is not None and self.coverage.missing > self.spec.dismissed.value

    @property
    def is_held_up(self) -> bool:
        """Whether only failed rows may be missing in the space being built, but too many."""
        built = self.spec.building.coverage if self.spec.building else None
        has_jobs = bool(self.spec.waiting or self.spec.running)
        return built is not None and not has_jobs and not are_few(built.missing, of=built.rows)


def judge(facts: Facts) -> Verdict:
    """Return the worst state that applies, with all reasons for it."""
    reasons: tuple[tuple[State, Iterator[str]], ...] = (
        ("stalled", _stalled(facts)),
        ("degraded", _degraded(facts)),
        ("indexing", _indexing(facts)),
    )
    for state, sentences in reasons:
        if found := " ".join(sentences):
            return Verdict(state, found)
    if facts.spec.oldest_change_seconds is not None:
        others = f"Every other row is found with its current text{_but(facts.spec)}"
        return Verdict("fresh", f"{others}: {_changes(facts.spec)}.")
    if facts.coverage is None:
        return Verdict("fresh", "Nothing is waiting.")
    return Verdict("fresh", f"Every row is found with its current text{_but(facts.spec)}.")


def _stalled(facts: Facts) -> Iterator[str]:
    spec = facts.spec
    has_work = bool(spec.waiting) or facts.is_short
    if not facts.has_tables:
        yield "Its tables do not exist. Run manage.py makemigrations and manage.py migrate."
    elif spec.active is None:
        yield f"Nothing has been embedded yet. {WORKER}"
    elif facts.paused and has_work:
        yield f"{facts.paused}: {_waiting(facts)}."
    elif not spec.workers and has_work:
        yield f"No worker is running: {_waiting(facts)}. {WORKER}"
    elif facts.is_aside and has_work:
        yield f"Set aside by every worker, {DRIFT}: {_waiting(facts)}. {facts.aside[0]}"
    elif facts.exchanged and has_work and not facts.is_filling:
        yield f"{_waiting(facts)}. {facts.exchanged}"
    elif facts.down and has_work:
        yield f"The provider is down: {_waiting(facts)}. {facts.down}"
    elif (spec.oldest_change_seconds or 0.0) >= STUCK_SECONDS and not facts.completed:
        yield f"Nothing has been completed for minutes: {_changes(spec)}."


def _degraded(facts: Facts) -> Iterator[str]:
    spec = facts.spec
    if facts.paused:
        yield f"{facts.paused}. Nothing is waiting yet."
    elif not spec.workers:
        yield f"No worker is running. Nothing is waiting yet, but the next change will. {WORKER}"
    elif facts.is_aside:
        yield f"Set aside by every worker, {DRIFT}. Nothing is waiting yet. {facts.aside[0]}"
    elif facts.exchanged:
        yield facts.exchanged
    elif facts.down:
        yield f"The provider is down. Nothing is waiting yet. {facts.down}"
    elif facts.unreachable_for:
        yield f"{facts.unreachable_for} of {spec.workers} workers cannot reach the provider."
    if facts.silent_triggers:
        one = facts.silent_triggers == 1
        yield (
            f"{facts.silent_triggers} of its triggers {'is' if one else 'are'} missing or "
            "disabled, so changes are found late. Run manage.py check --database "
            f"{facts.database}."
        )
    if facts.aside and not facts.is_aside:
        some = f"{len(facts.aside)} of {spec.workers} workers"
        yield f"Set aside by {some}, {DRIFT}. {facts.aside[0]}"
    if spec.open_failures:
        one = spec.open_failures.value == 1
        yield (
            f"{spec.open_failures} {'row has' if one else 'rows have'} failed and "
            f"may not be found with {'its' if one else 'their'} current text."
        )
        if facts.is_held_up:
            yield "The new space is not searched until they are fixed or dismissed."
    if facts.coverage and facts.coverage.is_of_other_language:
        yield (
            "Texts are stored with another full-text configuration than "
            "PGEMBED_TEXT_SEARCH_CONFIG, so full-text search may miss them."
        )
    if (spec.oldest_change_seconds or 0.0) >= LATE_SECONDS:
        yield f"Changes are late: {_changes(spec)}{_eta(spec)}."


def _indexing(facts: Facts) -> Iterator[str]:
    spec = facts.spec
    if spec.waiting.value > spec.changes.value:
        yield f"{spec.waiting} {_jobs(spec.waiting)}{_eta(spec)}. Changes go first."
    elif facts.is_short and spec.oldest_change_seconds is None:
        # Not if there are changes: the rows may be missing only because of these.
        yield f"Searches find {facts.coverage}. The reconciler checks the rest every few minutes."
    if spec.building:
        coverage = spec.building.coverage
        covered = f": {coverage}" if coverage else ""
        yield f"A new space is being built{covered}. Search uses the old one until it is full."
        if facts.next_provider and facts.next_provider.is_down:
            yield f"The new one's provider is down: {facts.next_provider.reason}"
        if facts.is_undeclared:
            yield (
                f"The settings declare another model than {spec.building.model} "
                f"({spec.building.dimensions}). If no newer code runs, stop building it: "
                f"manage.py embed_spaces cancel {spec.building.id}."
            )


def _but(spec: SpecStatus) -> str:
    if not spec.dismissed:
        return ", except perhaps some that were dismissed" * spec.dismissed.is_capped
    were = "was" if spec.dismissed == Count(1) else "were"
    return f", except {spec.dismissed} that {were} dismissed"


def _waiting(facts: Facts) -> str:
    if facts.spec.waiting:
        return f"{facts.spec.waiting} {_jobs(facts.spec.waiting)}"
    return f"a search finds {facts.coverage}"


def _changes(spec: SpecStatus) -> str:
    oldest = duration(spec.oldest_change_seconds or 0.0)
    if not spec.changes:
        return f"one change has been in progress for {oldest}"
    changes = "change is waiting" if spec.changes == Count(1) else "changes are waiting"
    return f"{spec.changes} {changes}, the oldest for {oldest}"


def _jobs(count: Count) -> str:
    return "job is waiting" if count == Count(1) else "jobs are waiting"


def _eta(spec: SpecStatus) -> str:
    if not spec.eta_seconds:
        return ""
    least = "at least" if spec.waiting.is_capped else "about"
    return f", {least} {duration(spec.eta_seconds)} to go"
