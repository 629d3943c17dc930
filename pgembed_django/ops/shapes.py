"""The values that make up a status. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, get_args

from pgembed_django.models.job import CHANGES
from pgembed_django.spaces import Coverage

State = Literal["fresh", "indexing", "degraded", "stalled"]
STATES: tuple[State, ...] = get_args(State)
"""From best to worst."""


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows, counted up to a bound. ``is_capped``: there may be more."""

    value: int
    is_capped: bool = False

    def __str__(self) -> str:
        return f"{self.value:,}{'+' * self.is_capped}"

    def __bool__(self) -> bool:
        return self.value > 0

    def __add__(self, other: Count) -> Count:
        return Count(self.value + other.value, self.is_capped or other.is_capped)


NONE = Count(0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of a spec, with the reason in sentences for a person who is on call."""

    state: State
    reason: str


NOT_JUDGED = Verdict("fresh", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The pending jobs of one kind. ``later`` counts those of them that are not due yet.

    ``oldest_seconds`` is the age of the oldest counted job. If the count is capped, the jobs that
    are due first were counted.
    """

    kind: str
    waiting: Count
    later: Count
    oldest_seconds: float


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
class HeldJobs:
    """The jobs of one spec that one worker holds."""

    spec: str
    jobs: int
    oldest_seconds: float
    """How long it has held the oldest of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """The status of a worker. It is believed dead after a minute of silence.

    The defaults are for a worker whose row is gone: only the jobs that it holds are known.
    """

    id: int
    held: tuple[HeldJobs, ...]
    host: str = ""
    pid: int = 0
    version: str = ""
    specs: tuple[str, ...] = ()
    started_at: datetime | None = None
    last_seen_at: datetime | None = None
    silent_seconds: float | None = None
    is_live: bool = False
    paused: dict[str, str] = field(default_factory=dict)
    """Provider -> why this worker has paused it."""
    retries_at: dict[str, datetime] = field(default_factory=dict)
    """Provider -> when this worker tries it again."""
    aside: dict[str, str] = field(default_factory=dict)
    """Spec -> why this worker has set it aside."""

    @property
    def name(self) -> str:
        """Host and process id."""
        return f"{self.host}:{self.pid}" if self.host else f"worker {self.id}, gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderStatus:
    """A provider that the settings declare or a live space needs.

    ``is_down``: all live workers that need it have paused it, because it does not answer.
    """

    name: str
    """Its alias. With its model if the settings declare another model under the alias by now."""
    alias: str
    model: str
    specs: tuple[str, ...]
    """The specs whose live spaces need it."""
    is_declared: bool
    out_of_reach_of: tuple[str, ...]
    """The names of the workers that have paused it."""
    is_down: bool
    reason: str
    retries_at: datetime | None
    """When the first of these workers tries it again."""
    paused_by: str
    """Who has paused it by hand. Empty: nobody."""

    @property
    def is_away(self) -> bool:
        """Whether no worker asks it now: it is down, or paused by hand."""
        return self.is_down or bool(self.paused_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureKind:
    """The open failures of one spec with one signature. ``sample`` is the latest error."""

    spec: str
    signature: str
    count: Count
    first_at: datetime
    last_at: datetime
    sample: str
    sample_id: int
    """The id of the job with this error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureKinds:
    """Kinds of open failures, the largest first. ``is_whole``: there are no other kinds."""

    kinds: tuple[FailureKind, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The status of specs, workers and providers. ``at`` is the database's time."""

    at: datetime
    specs: tuple[SpecStatus, ...]
    workers: tuple[WorkerStatus, ...]
    providers: tuple[ProviderStatus, ...]
    unknown: dict[str, Count]
    """Spec that is not declared here -> its open failures. At most a hundred specs."""

    @property
    def verdict(self) -> Verdict:
        """The worst verdict among all specs."""
        worst = max(self.specs, key=lambda spec: STATES.index(spec.verdict.state), default=None)
        if worst is None:
            return Verdict("fresh", "No model is embeddable.")
        return Verdict(worst.verdict.state, f"{worst.key}: {worst.verdict.reason}")
