"""Judge the state of a spec, with reasons that a person on call can act on. Pure.

The reasons are not translated, not even in the admin, so that they match `embed_status`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, get_args

from pgembed_django.models.job import CHANGES
from pgembed_django.ops.capture import CaptureStatus
from pgembed_django.ops.formatting import duration
from pgembed_django.ops.queue import NO_RIPPLES, NONE, Backlog, Count, Ripples
from pgembed_django.spaces import Coverage, are_few

if TYPE_CHECKING:
    from pgembed_django.ops.coverage import Table
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
    ripples: Ripples = NO_RIPPLES
    oldest_change_seconds: float | None
    """Age of the oldest write, related change or manual retry that is pending or running."""
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
    """Who has paused it by hand. Empty: it is not paused."""
    words: float | None = None
    """Roughly the share of the texts that have their words in the declared language. None: all."""

    @property
    def waiting(self) -> Count:
        """The number of pending jobs of all kinds."""
        return sum((one.waiting for one in self.backlog), NONE)

    @property
    def changes(self) -> Count:
        """How many of the pending jobs are changes."""
        return sum((one.waiting for one in self.backlog if one.kind in CHANGES), NONE)


def judge(
    spec: SpecStatus,
    table: Table,
    *,
    provider: ProviderStatus | None,
    next_provider: ProviderStatus | None,
    is_undeclared: bool,
    aside: Sequence[str],
    completed: int,
    capture: CaptureStatus | None,
    using: str,
) -> Verdict:
    """Return the worst state that applies to a spec, with all reasons for it.

    ``next_provider`` is that of the space that is being built, and ``is_undeclared`` says that the
    settings declare another space. ``aside``: the reasons of the workers that have set the spec
    aside. ``completed``: how many units were completed in the last minutes. ``capture``: if its
    changes are read from the write-ahead log.
    """
    reasons: dict[State, list[str]] = {state: [] for state in STATES}
    indexing, degraded, stalled = reasons["indexing"], reasons["degraded"], reasons["stalled"]
    active, building = spec.active, spec.building
    coverage = active.coverage if active else None
    is_short = coverage is not None and coverage.missing > spec.dismissed.value
    oldest_seconds = spec.oldest_change_seconds or 0.0
    is_stuck = oldest_seconds >= STUCK_SECONDS and not completed
    has_work = bool(spec.waiting or spec.ripples.waiting) or is_short or is_stuck
    waiting = f"a search finds {coverage}" if is_short else _changes(spec)
    waiting = _jobs(spec.waiting) if spec.waiting else waiting

    # Why nothing moves: the first that applies. It stalls a spec that has work.
    exchanged = _exchanged(spec)
    paused_by = provider.paused_by if provider else ""
    down = provider.reason if provider and provider.is_down and not exchanged else ""
    unreachable = len(provider.out_of_reach_of) if provider else 0
    is_filling = next_provider is not None and not next_provider.is_away
    some_aside = aside[0] if aside else ""
    causes = (
        (spec.paused_by, f"Paused by {spec.paused_by}", ""),
        (paused_by, f"The provider is paused by {paused_by}", ""),
        (not spec.workers, "No worker is running", WORKER),
        (len(aside) == spec.workers, f"Set aside by every worker, {DRIFT}", some_aside),
        (down, "The provider is down", down),
    )
    if not table.is_there:
        stalled.append("Its tables do not exist. Run manage.py makemigrations and migrate.")
    elif active is None:
        stalled.append(f"Nothing has been embedded yet. {WORKER}")
    elif found := [(cause, remedy) for applies, cause, remedy in causes if applies]:
        [(cause, remedy), *_] = found
        what = f": {waiting}." if has_work else ". Nothing is waiting yet."
        (stalled if has_work else degraded).append(f"{cause}{what} {remedy}".rstrip())
    elif exchanged and has_work and not is_filling:
        stalled.append(f"{waiting}. {exchanged}")
    elif exchanged:
        degraded.append(exchanged)
    elif is_stuck:
        stalled.append(f"Nothing has been completed for minutes: {_changes(spec)}.")
    elif unreachable:
        degraded.append(f"{unreachable} of {spec.workers} workers cannot reach the provider.")

    if capture:
        stalled += _unread(spec, capture, using)
        if capture.is_read and (lag_seconds := capture.lag_seconds or 0.0) >= LATE_SECONDS:
            degraded.append(
                f"Changes of the last {duration(lag_seconds)} are yet to be read from the "
                "write-ahead log."
            )

    # Why some rows are not found with their current text.
    if silent := table.silent_triggers:
        degraded.append(
            f"{silent} of its triggers {'is' if silent == 1 else 'are'} missing or disabled, so "
            f"changes are found late. Run manage.py check --database {using}."
        )
    if 0 < len(aside) < spec.workers:
        degraded.append(f"Set aside by {len(aside)} of {spec.workers} workers, {DRIFT}. {aside[0]}")
    if spec.open_failures:
        has, its = ("row has", "its") if spec.open_failures == Count(1) else ("rows have", "their")
        degraded.append(
            f"{spec.open_failures} {has} failed and may not be found with {its} current text."
        )
        built = building.coverage if building else None
        if built and not (spec.waiting or spec.running or are_few(built.missing, of=built.rows)):
            degraded.append("The new space is not searched until they are fixed or dismissed.")
    if spec.words is not None:
        degraded.append(
            f"Full-text search may miss words: about {spec.words:.0%} of the texts have them in "
            "the declared language by now. Workers make them again, without a provider."
        )
    if oldest_seconds >= LATE_SECONDS:
        degraded.append(f"Changes are late: {_changes(spec)}{_eta(spec)}.")

    # What is embedded behind the changes.
    if spec.waiting.value > spec.changes.value:
        indexing.append(f"{_jobs(spec.waiting)}{_eta(spec)}. Changes go first.")
    elif is_short and spec.oldest_change_seconds is None:
        # Not if there are changes: the rows may be missing only because of these.
        indexing.append(
            f"Searches find {coverage}. The reconciler checks the rest every few minutes."
        )
    if building:
        covered = f": {building.coverage}" if building.coverage else ""
        indexing.append(
            f"A new space is being built{covered}. Search uses the old one until it is full."
        )
        if next_provider and next_provider.is_down:
            indexing.append(f"The new one's provider is down: {next_provider.reason}")
        if is_undeclared:
            indexing.append(
                f"The settings declare another model than {building.model} "
                f"({building.dimensions}). If no newer code runs, stop building it: "
                f"manage.py embed_spaces cancel {building.id}."
            )

    reasons["fresh"].append(_fresh(spec))
    worst = max((state for state in STATES if reasons[state]), key=STATES.index)
    return Verdict(worst, " ".join(reasons[worst]))


def _unread(spec: SpecStatus, capture: CaptureStatus, using: str) -> list[str]:
    """Return why its changes are not read from the log at all."""
    if fault := capture.faults.get(spec.key):
        return [f"{fault} Run manage.py check --database {using}."]
    is_late = capture.lag_seconds is None or capture.lag_seconds >= LATE_SECONDS
    if capture.is_read or not spec.workers or not (capture.problem or is_late):
        return []
    why = capture.problem or "No worker reads them. Their logs say why."
    return [f"Its changes are not read from the write-ahead log: {why}"]


def _fresh(spec: SpecStatus) -> str:
    but = ", except perhaps some that were dismissed" if spec.dismissed.is_capped else ""
    if spec.dismissed:
        were = "was" if spec.dismissed == Count(1) else "were"
        but = f", except {spec.dismissed} that {were} dismissed"
    if spec.oldest_change_seconds is not None:
        return f"Every other row is found with its current text{but}: {_changes(spec)}."
    if spec.active is None or spec.active.coverage is None:
        return "Nothing is waiting."
    return f"Every row is found with its current text{but}."


def _exchanged(spec: SpecStatus) -> str:
    """Return what searches do because their model was exchanged. Empty: it was not."""
    if spec.active is None or not spec.active.exchanged:
        return ""
    if (new := spec.building) is None:
        return f"Searches use full text only. {spec.active.exchanged}"
    covered = f" ({new.coverage})" if new.coverage else ""
    return (
        f"Searches use full text only until the new space {new.id} is full{covered}: the server "
        f"has another model than that of space {spec.active.id}."
    )


def _changes(spec: SpecStatus) -> str:
    oldest = duration(spec.oldest_change_seconds or 0.0)
    count, of = spec.changes, ""
    if not count:
        count, of = spec.ripples.waiting, " of related rows"
    if not count:
        return f"one change has been in progress for {oldest}"
    waits = f"change{of} is waiting" if count == Count(1) else f"changes{of} are waiting"
    return f"{count} {waits}, the oldest for {oldest}"


def _jobs(count: Count) -> str:
    return f"{count} {'job is' if count == Count(1) else 'jobs are'} waiting"


def _eta(spec: SpecStatus) -> str:
    if not spec.eta_seconds:
        return ""
    least = "at least" if spec.waiting.is_capped else "about"
    return f", {least} {duration(spec.eta_seconds)} to go"
