"""Read the status of workers, and of the providers that they ask."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain

from pgembed_django import conf
from pgembed_django.models import Space, Worker
from pgembed_django.moments import seconds_between
from pgembed_django.ops.queue import HeldJobs, Queue
from pgembed_django.queue import jobs

SILENT_SECONDS = 60.0
"""A worker reports every ten seconds. After so long a silence it is believed dead."""


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


def read_workers(
    counted: Queue, now: datetime, live: Mapping[str, Sequence[Space]], *, using: str
) -> list[WorkerStatus]:
    """Return the workers that have a row or still hold jobs."""
    found = []
    # Workers may have other settings, in a deploy: call their providers as this process does.
    names = {}
    for space in chain.from_iterable(live.values()):
        key = conf.provider_key(space.provider, space.model, space.dimensions)
        names[key] = name_of(space)
        names[conf.lost_name(key, space.pk)] = conf.lost_name(name_of(space), space.pk)
    held = dict(counted.held)
    for row in Worker.objects.using(using).order_by("host", "pid"):
        silent = seconds_between(row.last_seen_at, now)
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
                paused={names.get(key, key): why for key, why in row.paused.items()},
                retries_at={
                    names.get(key, key): datetime.fromtimestamp(
                        row.last_seen_at.timestamp() + seconds, UTC
                    )
                    for key, seconds in row.paused_seconds.items()
                },
                aside=dict(row.aside),
            )
        )
    # Workers without a row: the leases of their jobs will expire, or a person releases the jobs.
    gone = (WorkerStatus(id=one, held=tuple(left)) for one, left in sorted(held.items()))
    return [*found, *gone]


def read_providers(
    live: Mapping[str, Sequence[Space]], workers: Iterable[WorkerStatus], paused: jobs.Paused
) -> dict[str, ProviderStatus]:
    """Return the declared providers and those of the live spaces, by name."""
    settings = conf.current().declared
    models = {alias: (alias, str(one.get("MODEL", ""))) for alias, one in settings.items()}
    needed_by: defaultdict[str, set[str]] = defaultdict(set)
    declared = set(settings)
    told = {name for one in workers if one.is_live for name in one.retries_at}
    for space in chain.from_iterable(live.values()):
        name = name_of(space)
        if (lost := conf.lost_name(name, space.pk)) in told:
            declared |= {lost} if name in settings else set()
            name = lost
        models[name] = space.provider, space.model
        needed_by[name].add(space.spec)
    found = {}
    for name, (alias, model) in sorted(models.items()):
        specs = needed_by[name]
        asking = [one for one in workers if one.is_live and not specs.isdisjoint(one.specs)]
        # Only an unreachable provider has a time of its next try: one paused by hand has none.
        pausing = [worker for worker in asking if name in worker.retries_at]
        times = [worker.retries_at[name] for worker in pausing]
        found[name] = ProviderStatus(
            name=name,
            alias=alias,
            model=model,
            specs=tuple(sorted(specs)),
            is_declared=name in declared,
            out_of_reach_of=tuple(worker.name for worker in pausing),
            is_down=bool(pausing) and len(pausing) == len(asking),
            reason=pausing[0].paused[name] if pausing else "",
            retries_at=min(times, default=None),
            paused_by=paused.providers.get(alias, ""),
        )
    return found


def provider_of(space: Space, providers: Mapping[str, ProviderStatus]) -> ProviderStatus | None:
    """Return the status of a space's provider."""
    name = name_of(space)
    return providers.get(conf.lost_name(name, space.pk), providers.get(name))


def name_of(space: Space) -> str:
    """Return the name that a status gives to a space's provider."""
    return conf.current().provider_name(space.provider, space.model, space.dimensions)
