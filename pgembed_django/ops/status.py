"""Read the status of specs, queues, workers and providers, for the admin, the commands and metrics.

Every function is cheap enough for a page that refreshes itself, however large the tables are:
counts stop at a bound and say so, and large tables are sampled.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from pgembed_django import conf, providers
from pgembed_django.core.moments import seconds_between
from pgembed_django.declaration import specs as declared
from pgembed_django.declaration.specs import Spec
from pgembed_django.executors import Status
from pgembed_django.models import Space, Worker
from pgembed_django.models.job import CHANGES
from pgembed_django.ops import verdicts
from pgembed_django.ops.capture import CaptureStatus, read_capture
from pgembed_django.ops.coverage import Table, read_coverage, read_tables, read_words
from pgembed_django.ops.queue import (
    NO_RIPPLES,
    NONE,
    Backlog,
    Count,
    FailureKind,
    FailureKinds,
    HeldJobs,
    Queue,
    count_jobs,
    failure_kinds,
)
from pgembed_django.ops.tasks import (
    QUEUE_STATES,
    QueueStatus,
    QueueVerdict,
    count_tasks,
    queue_statuses,
)
from pgembed_django.ops.verdicts import STATES, SpaceStatus, SpecStatus, Verdict
from pgembed_django.queue import jobs, rollups
from pgembed_django.queue.rollups import Point, series
from pgembed_django.spaces import Coverage, is_of, live_of
from pgembed_django.tasks import backend

__all__ = [
    "QUEUE_STATES",
    "STATES",
    "Backlog",
    "CaptureStatus",
    "Count",
    "Coverage",
    "ExecutorStatus",
    "FailureKind",
    "FailureKinds",
    "HeldJobs",
    "Overview",
    "Point",
    "ProviderStatus",
    "QueueStatus",
    "QueueVerdict",
    "SpaceStatus",
    "SpecStatus",
    "Verdict",
    "WorkerStatus",
    "failure_kinds",
    "overview",
    "series",
]

SILENT_SECONDS = 60.0
"""A worker reports every ten seconds. After so long a silence it is believed dead."""

MAX_UNKNOWN = 100
"""How many undeclared specs to report at most: anyone can enqueue jobs of any name, and each name
becomes a metric."""


SEVERITY = {"fresh": 0, "moving": 0, "indexing": 1, "degraded": 2, "stalled": 3}
"""By the states of specs and of queues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStatus(Status):
    """What an executor of a worker was at when the worker last reported."""

    provider: str
    """The name of the provider whose model it runs, as in ``ProviderStatus``."""

    @property
    def runs_on(self) -> str:
        """Its devices, those of the same name together."""
        counts = Counter(self.devices).items()
        return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts)


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
    """Spec -> why this worker has set it aside. Queue -> why it takes none of its tasks."""
    executors: tuple[ExecutorStatus, ...] = ()
    """Those of its models in process."""

    @property
    def holds_jobs(self) -> bool:
        """Whether it holds jobs of specs."""
        return not all(held.are_tasks for held in self.held)

    @property
    def holds_tasks(self) -> bool:
        """Whether it holds tasks."""
        return any(held.are_tasks for held in self.held)

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
    """Who has paused it by hand. Empty: it is not paused."""

    @property
    def is_away(self) -> bool:
        """Whether no worker asks it now: it is down, or paused by hand."""
        return self.is_down or bool(self.paused_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The status of specs, queues, workers and providers. ``at`` is the database's time."""

    at: datetime
    specs: tuple[SpecStatus, ...]
    queues: tuple[QueueStatus, ...]
    workers: tuple[WorkerStatus, ...]
    providers: tuple[ProviderStatus, ...]
    unknown: dict[str, Count]
    """Spec that is not declared here -> its open failures. At most a hundred specs."""
    capture: CaptureStatus | None = None
    """How far the write-ahead log was read. None: no spec's changes come from there."""

    @property
    def verdict(self) -> Verdict | QueueVerdict:
        """The worst verdict among all specs and queues."""
        every: list[SpecStatus | QueueStatus] = [*self.specs, *self.queues]
        worst = max(every, key=lambda one: SEVERITY[one.verdict.state], default=None)
        if worst is None:
            return Verdict("fresh", "No model is embeddable, and TASKS has no queue.")
        return replace(worst.verdict, reason=f"{worst.key}: {worst.verdict.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The results of all queries, for all specs."""

    using: str
    tables: Mapping[str, Table]
    live: Mapping[str, Sequence[Space]]
    coverage: Mapping[int, Coverage]
    words: Mapping[str, float]
    queue: Queue
    recent: Mapping[str, Point]
    workers: Sequence[WorkerStatus]
    providers: Mapping[str, ProviderStatus]
    paused: jobs.Paused
    capture: CaptureStatus | None

    def provider_of(self, space: Space | None) -> ProviderStatus | None:
        """Return the status of a space's provider."""
        if space is None:
            return None
        name = _name(space)
        return self.providers.get(conf.lost_name(name, space.pk), self.providers.get(name))


def overview(
    *,
    using: str,
    specs: Sequence[Spec] | None = None,
    queues: Sequence[str] | None = None,
    is_exact: bool = False,
    max_count: int | None = None,
) -> Overview:
    """Return the status of specs, queues, workers and providers.

    It takes the same few queries however many there are, and a few more if a table is locked.

    ``specs``, ``queues``: only these. None: all.

    ``is_exact``: count the coverage of large tables by reading all of them, not a sample.
    ``max_count``: count at most so many jobs per spec and priority, instead of the default.
    """
    chosen = declared.on(using) if specs is None else list(specs)
    # Coverage before the queue: a row that is not covered at the first look still has its job at
    # the second, or was embedded in between. The other way round both could miss it.
    now, tables = read_tables(chosen, using=using)
    live = live_of(chosen, using=using)
    coverage = read_coverage(chosen, live, tables, using=using, is_exact=is_exact)
    queue = count_jobs([spec.key for spec in chosen], using=using, max_count=max_count)
    in_settings = backend.queues()
    tasks = count_tasks([*in_settings, *(queues or ())], using=using, max_count=max_count)
    workers = _workers((queue, tasks), now, live, using=using)
    paused = jobs.paused(using=using)
    recent = rollups.recent(using=using, now=now)
    read = Read(
        using=using,
        tables=tables,
        live=live,
        coverage=coverage,
        words=read_words(chosen, tables, using=using),
        queue=queue,
        recent=recent,
        workers=workers,
        providers=_providers(live, workers, paused),
        paused=paused,
        capture=read_capture(chosen, using=using, now=now),
    )
    known = {spec.key for spec in declared.all()}
    unknown = ((key, count) for key, count in queue.failures.items() if key not in known)
    return Overview(
        at=now,
        specs=tuple(_spec(spec, read) for spec in chosen),
        queues=queue_statuses(
            queues,
            tasks,
            declared=in_settings,
            recent=recent,
            workers=workers,
            paused=paused.specs,
        ),
        workers=tuple(workers),
        providers=tuple(read.providers.values()),
        unknown=dict(islice(unknown, MAX_UNKNOWN)),
        capture=read.capture,
    )


def _spec(spec: Spec, read: Read) -> SpecStatus:
    key = spec.key
    by_state = {space.state: space for space in read.live.get(key, ())}
    active, building = by_state.get(Space.State.ACTIVE), by_state.get(Space.State.BUILDING)
    recent = read.recent.get(key, Point())
    workers = [worker for worker in read.workers if worker.is_live and key in worker.specs]
    aside = [worker.aside[key] for worker in workers if key in worker.aside]
    paused_by = read.paused.specs.get(key, "")
    # If no worker may work on the spec now, the rate of the last minutes says nothing.
    is_stopped = bool(paused_by) or len(workers) == len(aside)
    pace = 0.0 if is_stopped else recent.units_per_second
    backlog = tuple(read.queue.backlog[key].values())
    running = read.queue.running[key]
    failures = read.queue.failures.get(key, NONE)
    waiting = sum((one.waiting for one in backlog), NONE)
    # Changes are embedded in the space that is searched, gaps in the one that is being built.
    provider, next_provider = read.provider_of(active), read.provider_of(building)
    is_away = bool(provider and provider.is_away)
    if next_provider and (is_away or not any(one.kind in CHANGES for one in backlog)):
        is_away = next_provider.is_away
    eta = waiting.value / pace if pace and not is_away else None
    # Without jobs, the rows that a space lacks have failed or are yet to be found: no ETA. Those of
    # a building space are found at once.
    has_jobs = bool(waiting or running)
    status = SpecStatus(
        key=key,
        active=_space(active, read, pace if has_jobs else 0.0),
        building=_space(building, read, pace if has_jobs or not failures else 0.0),
        backlog=backlog,
        running=running,
        ripples=read.queue.ripples.get(key, NO_RIPPLES),
        oldest_change_seconds=read.queue.oldest_change.get(key),
        open_failures=failures,
        dismissed=read.queue.dismissed.get(key, NONE),
        units_per_second=recent.units_per_second,
        p50_seconds=recent.quantile(0.5),
        p99_seconds=recent.quantile(0.99),
        eta_seconds=eta if waiting else 0.0,
        workers=len(workers),
        paused_by=paused_by,
        words=read.words.get(key),
    )
    verdict = verdicts.judge(
        status,
        read.tables[key],
        provider=provider,
        next_provider=next_provider,
        is_undeclared=building is not None and not _is_declared(spec, building),
        aside=aside,
        completed=recent.completed,
        capture=read.capture if spec.is_read_from_log else None,
        using=read.using,
    )
    return replace(status, verdict=verdict)


def _is_declared(spec: Spec, space: Space) -> bool:
    """Return whether the settings declare the space. True if a check reports them."""
    try:
        return is_of(space, providers.get(spec.provider))
    except ImproperlyConfigured:
        return True


def _space(space: Space | None, read: Read, pace: float) -> SpaceStatus | None:
    if space is None:
        return None
    coverage = read.coverage.get(space.pk)
    provider = read.provider_of(space)
    is_moving = pace and not (provider and provider.is_away)
    missing = coverage.missing if coverage and is_moving else 0
    return SpaceStatus(
        id=space.pk,
        provider=space.provider,
        model=space.model,
        dimensions=space.dimensions,
        is_active=space.state == Space.State.ACTIVE,
        created_at=space.created_at,
        coverage=coverage,
        eta_seconds=missing / pace if missing else None,
        exchanged=space.exchanged,
    )


def _workers(
    counted: Sequence[Queue], now: datetime, live: Mapping[str, Sequence[Space]], *, using: str
) -> list[WorkerStatus]:
    """Return the workers that have a row or still hold jobs."""
    # Workers may have other settings, in a deploy: call their providers as this process does.
    names = {}
    for space in chain.from_iterable(live.values()):
        key = conf.provider_key(space.provider, space.model, space.dimensions)
        names[key] = _name(space)
        names[conf.lost_name(key, space.pk)] = conf.lost_name(_name(space), space.pk)
    held: dict[int, tuple[HeldJobs, ...]] = {}
    for worker, of_spec in chain.from_iterable(queue.held.items() for queue in counted):
        held[worker] = (*held.get(worker, ()), *of_spec.values())
    found = []
    for row in Worker.objects.using(using).order_by("host", "pid"):
        silent = seconds_between(row.last_seen_at, now)
        seen_at = row.last_seen_at.timestamp()
        # A queue may be called as a provider is. It waits for one, or is paused by hand.
        queues = {name for name in row.specs if "." not in name}
        waiting = {name: why for name, why in row.paused.items() if name in queues}
        found.append(
            WorkerStatus(
                id=row.pk,
                host=row.host,
                pid=row.pid,
                version=row.version,
                specs=tuple(row.specs),
                started_at=row.started_at,
                last_seen_at=row.last_seen_at,
                silent_seconds=max(0.0, silent),
                is_live=silent < SILENT_SECONDS,
                held=held.pop(row.pk, ()),
                paused={
                    names.get(key, key): why for key, why in row.paused.items() if key not in queues
                },
                retries_at={
                    names.get(key, key): datetime.fromtimestamp(seen_at + seconds, UTC)
                    for key, seconds in row.paused_seconds.items()
                    if key not in queues
                },
                aside={**row.aside, **waiting},
                executors=tuple(_executor(one, names) for one in row.executors),
            )
        )
    # Workers without a row: the leases of their jobs will expire, or a person releases the jobs.
    return [*found, *(WorkerStatus(id=worker, held=jobs) for worker, jobs in sorted(held.items()))]


def _executor(told: Mapping[str, Any], names: Mapping[str, str]) -> ExecutorStatus:
    """Return what a worker, of perhaps another version, tells about an executor."""
    known = {one.name: told[one.name] for one in fields(ExecutorStatus) if one.name in told}
    return ExecutorStatus(**{**known, "provider": names.get(told["provider"], told["provider"])})


def _providers(
    live: Mapping[str, Sequence[Space]], workers: Sequence[WorkerStatus], paused: jobs.Paused
) -> dict[str, ProviderStatus]:
    """Return the declared providers and those of the live spaces, by name."""
    settings = conf.current().declared
    models = {alias: (alias, str(one.get("MODEL", ""))) for alias, one in settings.items()}
    needed_by: defaultdict[str, set[str]] = defaultdict(set)
    names_declared = set(settings)
    alive = [worker for worker in workers if worker.is_live]
    unreachable = {name for worker in alive for name in worker.retries_at}
    for space in chain.from_iterable(live.values()):
        name = _name(space)
        if (lost := conf.lost_name(name, space.pk)) in unreachable:
            names_declared |= {lost} if name in settings else set()
            name = lost
        models[name] = space.provider, space.model
        needed_by[name].add(space.spec)
    found = {}
    for name, (alias, model) in sorted(models.items()):
        asking = [worker for worker in alive if not needed_by[name].isdisjoint(worker.specs)]
        # Only an unreachable provider has a time of its next try: one paused by hand has none.
        pausing = [worker for worker in asking if name in worker.retries_at]
        found[name] = ProviderStatus(
            name=name,
            alias=alias,
            model=model,
            specs=tuple(sorted(needed_by[name])),
            is_declared=name in names_declared,
            out_of_reach_of=tuple(worker.name for worker in pausing),
            is_down=bool(pausing) and len(pausing) == len(asking),
            reason=pausing[0].paused[name] if pausing else "",
            retries_at=min((worker.retries_at[name] for worker in pausing), default=None),
            paused_by=paused.providers.get(alias, ""),
        )
    return found


def _name(space: Space) -> str:
    """Return the name that a status gives to a space's provider."""
    return conf.current().provider_name(space.provider, space.model, space.dimensions)
