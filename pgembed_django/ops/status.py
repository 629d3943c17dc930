"""Read the status of specs, workers and providers, for the admin, the commands and metrics.

Every function is cheap enough for a page that refreshes itself, however large the tables are:
counts stop at a bound and say so, and large tables are sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice

from django.core.exceptions import ImproperlyConfigured

from pgembed_django import providers
from pgembed_django import specs as declared
from pgembed_django.models import Space
from pgembed_django.models.job import CHANGES
from pgembed_django.ops.coverage import Table, read_coverage, read_tables
from pgembed_django.ops.failures import (
    FailureKind,
    FailureKinds,
    failure_batches,
    failure_kinds,
)
from pgembed_django.ops.queue import NONE, Backlog, Count, HeldJobs, Queue, count_jobs
from pgembed_django.ops.verdicts import STATES, Facts, SpaceStatus, SpecStatus, Verdict, judge
from pgembed_django.ops.workers import (
    ProviderStatus,
    WorkerStatus,
    provider_of,
    read_providers,
    read_workers,
)
from pgembed_django.queue import jobs, rollups
from pgembed_django.queue.rollups import Point, series
from pgembed_django.spaces import Coverage, is_of, live_of
from pgembed_django.specs import Spec

__all__ = [
    "STATES",
    "Backlog",
    "Count",
    "Coverage",
    "FailureKind",
    "FailureKinds",
    "HeldJobs",
    "Overview",
    "Point",
    "ProviderStatus",
    "SpaceStatus",
    "SpecStatus",
    "Verdict",
    "WorkerStatus",
    "failure_batches",
    "failure_kinds",
    "overview",
    "series",
]

MAX_UNKNOWN = 100
"""How many undeclared specs to report at most: anyone can enqueue jobs of any name, and each name
becomes a metric."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The results of all queries, for all specs."""

    using: str
    tables: Mapping[str, Table]
    live: Mapping[str, Sequence[Space]]
    coverage: Mapping[int, Coverage]
    queue: Queue
    recent: Mapping[str, Point]
    workers: Sequence[WorkerStatus]
    providers: Mapping[str, ProviderStatus]
    paused: jobs.Paused


def overview(
    *,
    using: str,
    specs: Sequence[Spec] | None = None,
    is_exact: bool = False,
    max_count: int | None = None,
) -> Overview:
    """Return the status of specs, workers and providers.

    It takes the same few queries however many there are, and a few more if a table is locked.

    ``is_exact``: count the coverage of large tables by reading all of them, not a sample.
    ``max_count``: count at most so many jobs per spec and priority, instead of the default.
    """
    chosen = declared.on(using) if specs is None else list(specs)
    keys = [spec.key for spec in chosen]
    # Coverage before the queue: a row that is not covered at the first look still has its job at
    # the second, or was embedded in between. The other way round both could miss it.
    now, tables = read_tables(chosen, using=using)
    live = live_of(chosen, using=using)
    coverage = read_coverage(chosen, live, tables, using=using, is_exact=is_exact)
    counted = count_jobs(keys, using=using, max_count=max_count)
    workers = read_workers(counted, now, live, using=using)
    paused = jobs.paused(using=using)
    seen = Snapshot(
        using=using,
        tables=tables,
        live=live,
        coverage=coverage,
        queue=counted,
        recent=rollups.recent(using=using, now=now),
        workers=workers,
        providers=read_providers(live, workers, paused),
        paused=paused,
    )
    known = {spec.key for spec in declared.all()}
    unknown = ((key, count) for key, count in counted.failures.items() if key not in known)
    return Overview(
        at=now,
        specs=tuple(_spec(spec, seen) for spec in chosen),
        workers=tuple(workers),
        providers=tuple(seen.providers.values()),
        unknown=dict(islice(unknown, MAX_UNKNOWN)),
    )


def _spec(spec: Spec, seen: Snapshot) -> SpecStatus:
    key = spec.key
    by_state = {space.state: space for space in seen.live.get(key, ())}
    recent = seen.recent.get(key, Point())
    workers = [worker for worker in seen.workers if worker.is_live and key in worker.specs]
    aside = tuple(worker.aside[key] for worker in workers if key in worker.aside)
    paused_by = seen.paused.specs.get(key, "")
    # If no worker may work on the spec now, the rate of the last minutes says nothing.
    is_stopped = bool(paused_by) or len(workers) == len(aside)
    pace = 0.0 if is_stopped else recent.units_per_second
    backlog = seen.queue.backlog.get(key, ())
    running = seen.queue.running.get(key, NONE)
    waiting = sum((one.waiting for one in backlog), NONE)
    searched = by_state.get(Space.State.ACTIVE)
    # Without jobs, the rows that a space lacks have failed or are yet to be found: no ETA. Those of
    # a building space are found at once.
    has_jobs = bool(waiting or running)
    failures = seen.queue.failures.get(key, NONE)
    provider = provider_of(searched, seen.providers) if searched else None
    building = by_state.get(Space.State.BUILDING)
    next_provider = provider_of(building, seen.providers) if building else None
    has_changes = any(one.waiting for one in backlog if one.kind in CHANGES)
    # Changes are embedded in the space that is searched, gaps in the one that is being built.
    is_away = bool(provider and provider.is_away)
    if next_provider and (is_away or not has_changes):
        is_away = next_provider.is_away
    status = SpecStatus(
        key=key,
        active=_space(searched, seen, pace if has_jobs else 0.0),
        building=_space(building, seen, pace if has_jobs or not failures else 0.0),
        backlog=backlog,
        running=running,
        oldest_change_seconds=seen.queue.oldest_change.get(key),
        open_failures=failures,
        dismissed=seen.queue.dismissed.get(key, NONE),
        units_per_second=recent.units_per_second,
        p50_seconds=recent.quantile(0.5),
        p99_seconds=recent.quantile(0.99),
        eta_seconds=_eta(waiting, 0.0 if is_away else pace),
        workers=len(workers),
        paused_by=paused_by,
    )
    facts = Facts(
        spec=status,
        provider=provider,
        next_provider=next_provider,
        is_undeclared=building is not None and not _is_declared(spec, building),
        database=seen.using,
        has_tables=seen.tables[key].is_there,
        silent_triggers=seen.tables[key].silent_triggers,
        aside=aside,
        completed=recent.completed,
    )
    return replace(status, verdict=judge(facts))


def _is_declared(spec: Spec, space: Space) -> bool:
    """Return whether the settings declare the space. True if they are not valid: that is told."""
    try:
        return is_of(space, providers.get(spec.provider))
    except ImproperlyConfigured:
        return True


def _eta(waiting: Count, pace: float) -> float | None:
    if not waiting:
        return 0.0
    return waiting.value / pace if pace else None


def _space(space: Space | None, seen: Snapshot, pace: float) -> SpaceStatus | None:
    if space is None:
        return None
    coverage = seen.coverage.get(space.pk)
    provider = provider_of(space, seen.providers)
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
