"""How everything stands, in a handful of queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice

from pgembed_django import conf, jobs, rollups
from pgembed_django import specs as declared
from pgembed_django.models import Space, Worker
from pgembed_django.spaces import Coverage, live_of
from pgembed_django.specs import Spec
from pgembed_django.status import charts, covering, queue, verdicts
from pgembed_django.status.charts import Recent
from pgembed_django.status.queue import Queue
from pgembed_django.status.shapes import (
    NONE,
    Overview,
    ProviderStatus,
    SpaceStatus,
    SpecStatus,
    WorkerStatus,
    after,
)

MAX_UNKNOWN = 100
"""Specs that nobody declares: any name may have been queued, and each one would be a metric."""

SILENT_SECONDS = 60.0
"""A worker reports every ten seconds. One that has not for so long is believed dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The results of all queries, for all specs."""

    using: str
    tables: Mapping[str, covering.Table]
    live: Mapping[str, Sequence[Space]]
    coverage: Mapping[int, Coverage]
    queue: Queue
    recent: Mapping[str, Recent]
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
    """Return how specs, workers and providers stand, in seven queries whatever their number.

    ``is_exact`` counts the coverage of large tables too: that reads all of them.
    ``max_count``: how far jobs are counted, a spec's of one priority, instead of a little.
    """
    chosen = declared.on(using) if specs is None else list(specs)
    keys = [spec.key for spec in chosen]
    # Before the queue: what is not covered by now has a job there, or is covered then.
    now, tables = covering.tables(chosen, using=using)
    live = live_of(chosen, using=using)
    coverage = covering.coverage(chosen, live, tables, using=using, is_exact=is_exact)
    counted = queue.count(keys, using=using, max_count=max_count)
    workers = _workers(counted, now, using=using)
    paused = jobs.paused(using=using)
    seen = Snapshot(
        using=using,
        tables=tables,
        live=live,
        coverage=coverage,
        queue=counted,
        recent=charts.recent(using=using, now=now),
        workers=workers,
        providers=_providers(live, workers, paused),
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


def _workers(counted: Queue, now: datetime, *, using: str) -> list[WorkerStatus]:
    found = []
    held = dict(counted.held)
    for row in Worker.objects.using(using).order_by("host", "pid"):
        silent = (now - row.last_seen_at).total_seconds()
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
                held=tuple(held.pop(row.pk, ())),
                paused=dict(row.paused),
                retries_at={
                    name: after(row.last_seen_at, seconds)
                    for name, seconds in row.paused_seconds.items()
                },
                aside=dict(row.aside),
            )
        )
    # Jobs whose worker is forgotten: their leases run out, or a person releases them.
    for worker_id, left in sorted(held.items()):
        found.append(
            WorkerStatus(
                id=worker_id,
                host="",
                pid=0,
                version="",
                specs=(),
                started_at=None,
                last_seen_at=None,
                silent_seconds=None,
                is_live=False,
                held=tuple(left),
                paused={},
                retries_at={},
                aside={},
            )
        )
    return found


def _providers(
    live: Mapping[str, Sequence[Space]], workers: Iterable[WorkerStatus], paused: jobs.Paused
) -> dict[str, ProviderStatus]:
    settings = conf.current().providers
    models = {alias: (alias, str(one.get("MODEL", ""))) for alias, one in settings.items()}
    needed_by: defaultdict[str, set[str]] = defaultdict(set)
    for space in chain.from_iterable(live.values()):
        models[_name(space)] = space.provider, space.model
        needed_by[_name(space)].add(space.spec)
    found = {}
    for name, (alias, model) in sorted(models.items()):
        specs = needed_by[name]
        asking = [one for one in workers if one.is_live and not specs.isdisjoint(one.specs)]
        # What is only paused by hand is not tried again.
        pausing = [worker for worker in asking if name in worker.retries_at]
        times = [worker.retries_at[name] for worker in pausing]
        found[name] = ProviderStatus(
            name=name,
            alias=alias,
            model=model,
            specs=tuple(sorted(specs)),
            is_declared=name in settings,
            out_of_reach_of=tuple(worker.name for worker in pausing),
            is_down=bool(pausing) and len(pausing) == len(asking),
            reason=pausing[0].paused[name] if pausing else "",
            retries_at=min(times, default=None),
            paused_by=paused.providers.get(alias, ""),
        )
    return found


def _name(space: Space) -> str:
    return conf.current().provider_name(space.provider, space.model)


def _spec(spec: Spec, seen: Snapshot) -> SpecStatus:
    key = spec.key
    by_state = {space.state: space for space in seen.live.get(key, ())}
    recent = seen.recent.get(key, Recent())
    workers = [worker for worker in seen.workers if worker.is_live and key in worker.specs]
    rate = recent.units_per_second
    pace = rate if workers else 0.0
    active = _space(by_state.get(Space.State.ACTIVE), seen, pace)
    building = _space(by_state.get(Space.State.BUILDING), seen, pace)
    backlog = seen.queue.backlog.get(key, ())
    waiting = sum((one.waiting for one in backlog), NONE)
    changes = sum((one.waiting for one in backlog if one.kind in queue.CHANGES), NONE)
    eta = waiting.value / pace if pace else (None if waiting else 0.0)
    searched = by_state.get(Space.State.ACTIVE)
    provider = seen.providers.get(_name(searched)) if searched else None
    oldest = seen.queue.oldest_change.get(key)
    failures = seen.queue.failures.get(key, NONE)
    paused_by = seen.paused.specs.get(key, "")
    facts = verdicts.Facts(
        database=seen.using,
        has_tables=seen.tables[key].is_there,
        has_space=active is not None,
        silent_triggers=seen.tables[key].silent_triggers,
        paused_by=paused_by or (provider.paused_by if provider else ""),
        workers=len(workers),
        aside=tuple(worker.aside[key] for worker in workers if key in worker.aside),
        down=provider.reason if provider and provider.is_down else "",
        unreachable_for=len(provider.out_of_reach_of) if provider else 0,
        waiting=waiting,
        changes=changes,
        oldest_change_seconds=oldest,
        failures=failures,
        coverage=active.coverage if active else None,
        is_building=building is not None,
        building_coverage=building.coverage if building else None,
        completed=recent.completed,
        eta_seconds=eta,
    )
    return SpecStatus(
        key=key,
        verdict=verdicts.judge(facts),
        active=active,
        building=building,
        backlog=backlog,
        running=seen.queue.running.get(key, NONE),
        oldest_change_seconds=oldest,
        open_failures=failures,
        units_per_second=rate,
        p50_seconds=rollups.quantile(recent.waits, 0.5),
        p99_seconds=rollups.quantile(recent.waits, 0.99),
        eta_seconds=eta,
        workers=len(workers),
        paused_by=paused_by,
    )


def _space(space: Space | None, seen: Snapshot, pace: float) -> SpaceStatus | None:
    if space is None:
        return None
    coverage = seen.coverage.get(space.pk)
    missing = coverage.missing if coverage else 0
    return SpaceStatus(
        id=space.pk,
        provider=space.provider,
        model=space.model,
        dimensions=space.dimensions,
        is_active=space.state == Space.State.ACTIVE,
        created_at=space.created_at,
        coverage=coverage,
        eta_seconds=missing / pace if missing and pace else None,
    )
