"""The collectors: what one worker did and does, and the queue's gauges.

Each scrape has a registry that the application's own metrics are not in.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter as Sums
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from django.db import DatabaseError, InterfaceError, connections, transaction
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from pgembed_django import __version__, database, events
from pgembed_django.contrib.metrics import Render
from pgembed_django.embedding.units import Batch, Stored
from pgembed_django.ops import status
from pgembed_django.ops.status import Backlog, Overview, SpecStatus
from pgembed_django.queue.jobs import Claim
from pgembed_django.queue.worker import Worker

REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
STATEMENT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
WAIT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14_400)
FILL_BUCKETS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1)

COUNTED = {
    events.JOBS_CLAIMED: ("claimed", "Jobs claimed"),
    events.JOB_RETRIED: ("retried", "Attempts that failed, of jobs that come back"),
    events.JOB_FAILED: ("failed", "Jobs that have failed for good"),
    events.JOB_RELEASED: ("released", "Jobs given back with no attempt spent"),
    events.LEASES_LOST: ("leases_lost", "Jobs that are not this worker's any more"),
    events.LEASE_EXPIRED: ("leases_reaped", "Expired leases of lost workers"),
}
"""Events about jobs -> the counter of these jobs, by spec."""

MAX_COUNT = 100_000
"""How many jobs per spec and priority are counted at most. Gauges do not rise above it."""

REMEMBER_SECONDS = 5.0
STATEMENT_SECONDS = 2.0
LOOK_SECONDS = 10.0
"""A reading that takes longer counts as failed: a frozen server does not even time out."""

TIME_OUT = "SELECT set_config('statement_timeout', %(milliseconds)s, true)"

Samples = Iterable[tuple[Sequence[str], float | None]]


def of_queue(using: str) -> Render:
    """Return what renders the queue's gauges."""
    registry = CollectorRegistry()
    registry.register(queue_collector(using))
    return functools.partial(_render, registry)


def of_worker(worker: Worker) -> Render:
    """Return what renders a worker's counters from now on, its state, and the queue's gauges."""
    registry = CollectorRegistry()
    registry.register(WorkerCollector(worker, registry))
    registry.register(queue_collector(worker.using))
    ProcessCollector(registry=registry)
    return functools.partial(_render, registry)


def _render(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class WorkerCollector(Collector):
    """Counts a worker's events from now on, and yields the gauges of its present state.

    It counts for as long as something references it, such as the registry that it is in: signals
    hold their receivers weakly. The worker may not have started yet.
    """

    def __init__(self, worker: Worker, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"pgembed_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"pgembed_{name}", text, labels, registry=registry, buckets=buckets)

        self._worker = worker
        self._jobs = {event: counter(*named, "spec") for event, named in COUNTED.items()}
        self._completed = counter("completed", "Jobs whose vectors were stored", "spec")
        self._embedded = counter("chunks_embedded", "Chunks with a new vector", "spec")
        self._reused = counter("chunks_reused", "Chunks that had their vector already", "spec")
        self._waits = histogram("wait_seconds", "From write to vectors", WAIT_BUCKETS, "spec")
        self._requests = counter(
            "provider_requests", "Requests that came back", "provider", "outcome"
        )
        self._tokens = counter("provider_tokens", "Tokens embedded, estimated", "provider")
        self._latency = histogram(
            "provider_request_seconds", "Until a request came back", REQUEST_BUCKETS, "provider"
        )
        self._fill = histogram(
            "batch_fill_ratio", "How full requests were", FILL_BUCKETS, "provider"
        )
        self._claim_seconds = histogram("claim_seconds", "How long a claim took", STATEMENT_BUCKETS)
        self._store_seconds = histogram(
            "store_seconds", "How long storing and completing took", STATEMENT_BUCKETS
        )
        by_spec = (*self._jobs.values(), self._completed, self._embedded, self._reused, self._waits)
        for spec in worker.specs:
            # Create the series at zero, so that Prometheus sees the first increase.
            for of_spec in by_spec:
                of_spec.labels(spec)
        for event in COUNTED:
            events.happened.connect(self._on_jobs, sender=event)
        for event, receiver in (
            (events.JOBS_COMPLETED, self._on_completed),
            (events.BATCH_EMBEDDED, self._on_embedded),
            (events.BATCH_FAILED, self._on_refused),
            (events.PROVIDER_PAUSED, self._on_paused),
        ):
            events.happened.connect(receiver, sender=event)

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering does not ask the worker."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges. Another thread than the worker's reads them, so it changes nothing."""
        worker = self._worker
        is_on = worker.is_running
        yield InfoMetricFamily("pgembed_worker", "This worker", {"version": __version__})
        for name, text, number in (
            ("running", "1 while it claims: started, and not stopping", is_on),
            ("database_up", "0 while the database is away", is_on and not worker.is_cut_off),
            ("listener_up", "1 while notifications are heard", is_on and worker.listener.is_up),
            ("held_jobs", "Jobs it holds", worker.holds if is_on else 0),
            ("stuck", "1 while its loop is stuck", worker.liveness.stuck() is not None),
            (
                "loop_age_seconds",
                "Since its loop came round last. Idle, it does so every few seconds",
                worker.liveness.age_seconds,
            ),
        ):
            yield GaugeMetricFamily(f"pgembed_{name}", text, value=float(number))

    def _on_jobs(
        self, sender: events.Event, about: Claim | list[Claim], fields: dict[str, Any], **_: object
    ) -> None:
        claims = about if isinstance(about, list) else [about]
        for spec, count in Sums(claim.spec for claim in claims).items():
            self._jobs[sender].labels(spec).inc(count)
        if sender is events.JOBS_CLAIMED:
            self._claim_seconds.observe(fields["milliseconds"] / 1000)

    def _on_completed(self, about: Stored, fields: dict[str, Any], **_: object) -> None:
        by_spec = defaultdict(list)
        for unit in about.units:
            by_spec[unit.claim.spec].append(unit)
        for spec, units in by_spec.items():
            self._completed.labels(spec).inc(len(units))
            self._embedded.labels(spec).inc(sum(unit.embedded for unit in units))
            self._reused.labels(spec).inc(sum(unit.reused for unit in units))
            waits = self._waits.labels(spec)
            for unit in units:
                if unit.claim.id in about.waited:
                    waits.observe(about.waited[unit.claim.id])
        self._store_seconds.observe(fields["milliseconds"] / 1000)

    def _on_embedded(self, about: Batch, fields: dict[str, Any], **_: object) -> None:
        self._tokens.labels(fields["provider"]).inc(fields["tokens"])
        self._came_back(about, "embedded", fields["milliseconds"] / 1000)

    def _on_refused(self, about: Batch, fields: dict[str, Any], **_: object) -> None:
        if fields["refused"] == fields["chunks"]:
            self._came_back(about, "refused", fields["milliseconds"] / 1000)

    def _on_paused(self, about: Batch, fields: dict[str, Any], **_: object) -> None:
        if about.wanted:
            self._came_back(about, "unavailable", fields["milliseconds"] / 1000)

    def _came_back(self, batch: Batch, outcome: str, seconds: float) -> None:
        provider = batch.pool.provider
        self._requests.labels(provider.alias, outcome).inc()
        self._latency.labels(provider.alias).observe(seconds)
        self._fill.labels(provider.alias).observe(len(batch.wanted) / provider.batch_size)


def queue_collector(using: str) -> Collector:
    """Return the collector that all scrapes of one queue share, with what it remembers.

    django-tenants sets the tenant's schema on the connection.
    """
    return _queue_collector(using, getattr(connections[using], "schema_name", None))


@functools.cache
def _queue_collector(using: str, schema: str | None) -> QueueCollector:
    return QueueCollector(using=using)


class QueueCollector(Collector):
    """Reads the queue at most every ``REMEMBER_SECONDS``. Raises nothing if the database fails.

    The cost is bounded, however large the tables are: counts stop at a limit, coverage is sampled,
    statements have a time-out, and simultaneous scrapes share one reading.
    """

    def __init__(self, *, using: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._using = using
        self._clock = clock
        self._lock = threading.Lock()
        self._families = [_up(is_up=False)]
        self._began_at = self._read_at = float("-inf")

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing, so that registering does not query the database."""
        return []

    def collect(self) -> list[GaugeMetricFamily]:
        """Return all gauges. While another scrape reads them, return those of the last reading."""
        if self._lock.acquire(timeout=STATEMENT_SECONDS):
            try:
                if self._clock() >= self._read_at + REMEMBER_SECONDS:
                    self._began_at = self._clock()
                    self._families = self._read()
                    self._read_at = self._clock()
            finally:
                self._lock.release()
        elif self._clock() >= self._began_at + LOOK_SECONDS:
            return [_up(is_up=False)]
        return self._families

    def _read(self) -> list[GaugeMetricFamily]:
        started = time.monotonic()
        try:
            with (
                transaction.atomic(using=self._using),
                database.restoring("statement_timeout", using=self._using),
            ):
                milliseconds = str(int(STATEMENT_SECONDS * 1000))
                database.rows(self._using, TIME_OUT, milliseconds=milliseconds)
                seen = status.overview(using=self._using, max_count=MAX_COUNT)
        except (DatabaseError, InterfaceError):
            return [_up(is_up=False)]
        read = GaugeMetricFamily("pgembed_queue_read_seconds", "How long this look has taken")
        read.add_metric([], time.monotonic() - started)
        return [_up(is_up=True), read, *families(seen)]


def families(seen: Overview) -> Iterator[GaugeMetricFamily]:
    """Yield the gauges of an overview. An unknown value has no sample."""
    yield _of_kinds(
        seen,
        "jobs_ready",
        "Jobs that could be claimed now",
        lambda one: one.waiting.value - one.later.value,
    )
    yield _of_kinds(
        seen, "jobs_delayed", "Jobs that wait for their time", lambda one: one.later.value
    )
    yield _of_kinds(
        seen,
        "oldest_waiting_seconds",
        "Age of the oldest job that waits",
        lambda one: one.oldest_seconds,
    )
    for name, text, number in OF_SPECS:
        yield _gauge(name, text, ["spec"], (([spec.key], number(spec)) for spec in seen.specs))
    failures = {spec.key: spec.open_failures for spec in seen.specs} | seen.unknown
    yield _gauge(
        "open_failures",
        "Rows that have failed for good",
        ["spec"],
        (([key], count.value) for key, count in failures.items()),
    )
    yield _gauge(
        "coverage_ratio",
        "Share of the rows that a search of this space finds",
        ["spec", "space"],
        (
            ([spec.key, name], space.coverage.ratio if space and space.coverage else None)
            for spec in seen.specs
            for name, space in (("active", spec.active), ("building", spec.building))
        ),
    )
    yield _gauge(
        "spec_state",
        "1 for the state that the spec is in",
        ["spec", "state"],
        (
            ([spec.key, state], float(spec.verdict.state == state))
            for spec in seen.specs
            for state in status.STATES
        ),
    )
    alive = sum(worker.is_live for worker in seen.workers)
    yield _gauge("workers_alive", "Live workers", [], [([], float(alive))])
    yield _gauge(
        "provider_paused",
        "1 where no worker may ask the provider: it is down, or paused by hand",
        ["provider"],
        (([one.name], float(one.is_away)) for one in seen.providers),
    )


def _rows(spec: SpecStatus) -> float | None:
    space = spec.active or spec.building
    return space.coverage.rows if space and space.coverage else None


OF_SPECS: tuple[tuple[str, str, Callable[[SpecStatus], float | None]], ...] = (
    ("jobs_running", "Jobs that workers hold", lambda spec: spec.running.value),
    (
        "oldest_change_seconds",
        "Age of the oldest write or manual retry without its vectors",
        lambda spec: spec.oldest_change_seconds or 0.0,
    ),
    (
        "wait_p50_seconds",
        "From write to vectors, median of the last five minutes",
        lambda spec: spec.p50_seconds,
    ),
    (
        "wait_p99_seconds",
        "From write to vectors, 99th percentile of the last five minutes",
        lambda spec: spec.p99_seconds,
    ),
    (
        "rows_per_second",
        "Rows completed by all workers, mean of the last five minutes",
        lambda spec: spec.units_per_second,
    ),
    (
        "backlog_eta_seconds",
        "Until nothing waits, at the present rate. Infinite: nothing moves",
        lambda spec: float("inf") if spec.eta_seconds is None else spec.eta_seconds,
    ),
    ("rows", "Source rows that a search should find", _rows),
    ("workers", "Live workers that work on the spec", lambda spec: spec.workers),
)


def _of_kinds(
    seen: Overview, name: str, text: str, number: Callable[[Backlog], float]
) -> GaugeMetricFamily:
    """Return a gauge by spec and kind. Two kinds always have a sample: alerts need one."""

    def samples() -> Samples:
        for spec in seen.specs:
            found = {one.kind: number(one) for one in spec.backlog}
            for kind in dict.fromkeys(["write", "reconciler", *found]):
                yield [spec.key, kind], found.get(kind, 0.0)

    return _gauge(name, text, ["spec", "kind"], samples())


def _gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"pgembed_{name}", text, labels=labels)
    for values, number in samples:
        if number is not None:
            family.add_metric(values, number)
    return family


def _up(*, is_up: bool) -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "pgembed_queue_up", "1 where the queue could be read for this scrape", value=float(is_up)
    )
