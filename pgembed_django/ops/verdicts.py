"""Judge the state of a spec, with reasons that a person on call can act on. Pure.

The reasons are not translated, not even in the admin, so that they match `embed_status`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, get_args

from pgembed_django.models.job import CHANGES
from pgembed_django.ops.formatting import duration
from pgembed_django.ops.queue import NONE, Backlog, Count
from pgembed_django.spaces import Coverage, are_few

if TYPE_CHECKING:
    from pgembed_django.ops.status import ProviderStatus

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
    verdict: Verdict = Verdict("fresh", "")
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
    aside: Sequence[str]
    """The reasons of the workers that have set the spec aside, one each."""
    completed: int
    """How many units were completed in the last minutes."""


def judge(facts: Facts) -> Verdict:
    """Return the worst state that applies, with all reasons for it."""
    reasons: dict[State, list[str]] = defaultdict(list)
    for state, reason in (*_blocked(facts), *_flawed(facts), *_filling(facts), _fresh(facts.spec)):
        reasons[state].append(reason)
    worst = max(reasons, key=STATES.index)
    return Verdict(worst, " ".join(reasons[worst]))


def _blocked(facts: Facts) -> Iterator[tuple[State, str]]:
    """Yield the first of the reasons for which nothing moves. It stalls a spec that has work."""
    spec, provider = facts.spec, facts.provider
    if not facts.has_tables:
        yield "stalled", "Its tables do not exist. Run manage.py makemigrations and migrate."
        return
    if spec.active is None:
        yield "stalled", f"Nothing has been embedded yet. {WORKER}"
        return
    has_work = bool(spec.waiting) or _is_short(spec)
    waiting = _jobs(spec.waiting) if spec.waiting else f"a search finds {spec.active.coverage}"
    exchanged = _exchanged(spec.active, spec.building)
    paused_by = provider.paused_by if provider else ""
    down = provider.reason if provider and provider.is_down and not exchanged else ""
    unreachable = len(provider.out_of_reach_of) if provider else 0
    aside = facts.aside[0] if facts.aside else ""
    causes = (
        (spec.paused_by, f"Paused by {spec.paused_by}", ""),
        (paused_by, f"The provider is paused by {paused_by}", ""),
        (not spec.workers, "No worker is running", WORKER),
        (len(facts.aside) == spec.workers, f"Set aside by every worker, {DRIFT}", aside),
        (down, "The provider is down", down),
    )
    for applies, cause, remedy in causes:
        if applies:
            what = f": {waiting}." if has_work else ". Nothing is waiting yet."
            yield "stalled" if has_work else "degraded", f"{cause}{what} {remedy}".rstrip()
            return
    is_filling = facts.next_provider is not None and not facts.next_provider.is_away
    if exchanged and has_work and not is_filling:
        yield "stalled", f"{waiting}. {exchanged}"
    elif exchanged:
        yield "degraded", exchanged
    elif (spec.oldest_change_seconds or 0.0) >= STUCK_SECONDS and not facts.completed:
        yield "stalled", f"Nothing has been completed for minutes: {_changes(spec)}."
    elif unreachable:
        yield "degraded", f"{unreachable} of {spec.workers} workers cannot reach the provider."


def _flawed(facts: Facts) -> Iterator[tuple[State, str]]:
    """Yield why some rows are not found with their current text."""
    spec = facts.spec
    if facts.silent_triggers:
        yield (
            "degraded",
            f"{facts.silent_triggers} of its triggers "
            f"{'is' if facts.silent_triggers == 1 else 'are'} missing or disabled, so changes are "
            f"found late. Run manage.py check --database {facts.database}.",
        )
    if 0 < len(facts.aside) < spec.workers:
        some = f"{len(facts.aside)} of {spec.workers} workers"
        yield "degraded", f"Set aside by {some}, {DRIFT}. {facts.aside[0]}"
    if spec.open_failures:
        has, its = ("row has", "its") if spec.open_failures == Count(1) else ("rows have", "their")
        yield (
            "degraded",
            f"{spec.open_failures} {has} failed and may not be found with {its} current text.",
        )
        built = spec.building.coverage if spec.building else None
        if built and not (spec.waiting or spec.running or are_few(built.missing, of=built.rows)):
            yield "degraded", "The new space is not searched until they are fixed or dismissed."
    if (coverage := _coverage(spec)) and coverage.is_of_other_language:
        yield (
            "degraded",
            "Texts are stored with another full-text configuration than "
            "PGEMBED_TEXT_SEARCH_CONFIG, so full-text search may miss them.",
        )
    if (spec.oldest_change_seconds or 0.0) >= LATE_SECONDS:
        yield "degraded", f"Changes are late: {_changes(spec)}{_eta(spec)}."


def _filling(facts: Facts) -> Iterator[tuple[State, str]]:
    """Yield what is being embedded behind the changes."""
    spec, building = facts.spec, facts.spec.building
    if spec.waiting.value > spec.changes.value:
        yield "indexing", f"{_jobs(spec.waiting)}{_eta(spec)}. Changes go first."
    elif _is_short(spec) and spec.oldest_change_seconds is None:
        # Not if there are changes: the rows may be missing only because of these.
        yield (
            "indexing",
            f"Searches find {_coverage(spec)}. The reconciler checks the rest every few minutes.",
        )
    if building:
        covered = f": {building.coverage}" if building.coverage else ""
        yield (
            "indexing",
            f"A new space is being built{covered}. Search uses the old one until it is full.",
        )
        if facts.next_provider and facts.next_provider.is_down:
            yield "indexing", f"The new one's provider is down: {facts.next_provider.reason}"
        if facts.is_undeclared:
            yield (
                "indexing",
                f"The settings declare another model than {building.model} "
                f"({building.dimensions}). If no newer code runs, stop building it: "
                f"manage.py embed_spaces cancel {building.id}.",
            )


def _fresh(spec: SpecStatus) -> tuple[State, str]:
    but = ", except perhaps some that were dismissed" if spec.dismissed.is_capped else ""
    if spec.dismissed:
        were = "was" if spec.dismissed == Count(1) else "were"
        but = f", except {spec.dismissed} that {were} dismissed"
    if spec.oldest_change_seconds is not None:
        changes = _changes(spec)
        return "fresh", f"Every other row is found with its current text{but}: {changes}."
    if _coverage(spec) is None:
        return "fresh", "Nothing is waiting."
    return "fresh", f"Every row is found with its current text{but}."


def _exchanged(active: SpaceStatus, building: SpaceStatus | None) -> str:
    """Return what searches do because their model was exchanged. Empty: it was not."""
    if not active.exchanged:
        return ""
    if building is None:
        return f"Searches use full text only. {active.exchanged}"
    covered = f" ({building.coverage})" if building.coverage else ""
    return (
        f"Searches use full text only until the new space {building.id} is full{covered}: the "
        f"server has another model than that of space {active.id}."
    )


def _coverage(spec: SpecStatus) -> Coverage | None:
    return spec.active.coverage if spec.active else None


def _is_short(spec: SpecStatus) -> bool:
    """Return whether a search misses more rows than have a dismissed failure."""
    coverage = _coverage(spec)
    return coverage is not None and coverage.missing > spec.dismissed.value


def _changes(spec: SpecStatus) -> str:
    oldest = duration(spec.oldest_change_seconds or 0.0)
    if not spec.changes:
        return f"one change has been in progress for {oldest}"
    changes = "change is waiting" if spec.changes == Count(1) else "changes are waiting"
    return f"{spec.changes} {changes}, the oldest for {oldest}"


def _jobs(count: Count) -> str:
    return f"{count} {'job is' if count == Count(1) else 'jobs are'} waiting"


def _eta(spec: SpecStatus) -> str:
    if not spec.eta_seconds:
        return ""
    least = "at least" if spec.waiting.is_capped else "about"
    return f", {least} {duration(spec.eta_seconds)} to go"
