"""The collectors: what one worker did and does, and the queue's gauges.

Each scrape has a registry that the application's own metrics are not in.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter as Sums
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any

from django.db import DatabaseError, InterfaceError, connections, transaction
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from pgembed_django import __version__, events
from pgembed_django.contrib.metrics import Render
from pgembed_django.core import database
from pgembed_django.embedding.units import Batch, Stored
from pgembed_django.ops import status
from pgembed_django.ops.status import Backlog, Overview, QueueStatus, SpecStatus
from pgembed_django.queue.jobs import Claim
from pgembed_django.queue.worker import Worker

COUNTED = {
    events.JOBS_CLAIMED: "claimed",
    events.JOB_RETRIED: "retried",
    events.JOB_FAILED: "failed",
    events.JOB_RELEASED: "released",
    events.LEASES_LOST: "leases_lost",
    events.LEASE_EXPIRED: "leases_reaped",
}
"""Events about jobs -> the counter of these jobs, by spec or queue."""

BY_SPEC = (*COUNTED.values(), "completed", "chunks_embedded", "chunks_reused")
OF_EXECUTORS = {
    "executor_processes": "running",
    "executor_processes_wanted": "wanted",
    "executor_texts_per_second": "texts_per_second",
    "executor_queued": "queued",
}
"""Gauges -> what they tell of a provider's executors."""
OF_CHUNKS = ("chunks_embedded", "chunks_reused")
STATEMENT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
WAIT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14_400)
FILL_BUCKETS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1)

MAX_COUNT = 100_000
"""How many jobs per spec and priority are counted at most. Gauges do not rise above it."""

REMEMBER_SECONDS = 5.0
STATEMENT_SECONDS = 2.0
LOOK_SECONDS = 10.0
"""A reading that takes longer counts as failed: a frozen server does not even time out."""

TIME_OUT = "SELECT set_config('statement_timeout', %(milliseconds)s, true)"


def render_of(*collectors: Collector, registry: CollectorRegistry | None = None) -> Render:
    """Return what renders these collectors, and what is in the registry already."""
    registry = registry or CollectorRegistry()
    for collector in collectors:
        registry.register(collector)

    def render(accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    return render


def of_worker(worker: Worker) -> Render:
    """Return what renders a worker's counters from now on, its state, and the queue's gauges."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    mine = WorkerCollector(worker, registry)
    return render_of(mine, queue_collector(worker.using), registry=registry)


class WorkerCollector(Collector):
    """Counts a worker's events from now on, and yields the gauges of its present state.

    It counts for as long as something references it, such as the registry that it is in: signals
    hold their receivers weakly. The worker may not have started yet.
    """

    def __init__(self, worker: Worker, registry: CollectorRegistry) -> None:
        def counter(name: str, *labels: str) -> Counter:
            return Counter(f"pgembed_{name}", _help(name), labels, registry=registry)

        def histogram(name: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                f"pgembed_{name}", _help(name), labels, registry=registry, buckets=buckets
            )

        self._worker = worker
        self._counts = {name: counter(name, "spec") for name in BY_SPEC}
        self._waits = histogram("wait_seconds", WAIT_BUCKETS, "spec")
        self._requests = counter("provider_requests", "provider", "outcome")
        self._tokens = counter("provider_tokens", "provider")
        self._latency = histogram("provider_request_seconds", REQUEST_BUCKETS, "provider")
        self._fill = histogram("batch_fill_ratio", FILL_BUCKETS, "provider")
        self._claim_seconds = histogram("claim_seconds", STATEMENT_BUCKETS)
        self._store_seconds = histogram("store_seconds", STATEMENT_BUCKETS)
        # Create the series at zero, so that Prometheus sees the first increase.
        for spec in worker.specs:
            self._waits.labels(spec)
            for name, by_spec in self._counts.items():
                if "." in spec or name not in OF_CHUNKS:  # the name of a queue has no dot
                    by_spec.labels(spec)
        for event in COUNTED:
            events.happened.connect(self._on_jobs, sender=event)
        events.happened.connect(self._on_completed, sender=events.JOBS_COMPLETED)
        events.happened.connect(self._on_tasks, sender=events.TASKS_COMPLETED)
        for event in (events.BATCH_EMBEDDED, events.BATCH_FAILED, events.PROVIDER_PAUSED):
            events.happened.connect(self._on_batch, sender=event)

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering does not ask the worker."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges. Another thread than the worker's reads them, so it changes nothing."""
        worker = self._worker
        is_on = worker.is_running
        yield InfoMetricFamily("pgembed_worker", "This worker", {"version": __version__})
        for name, number in {
            "running": is_on,
            "database_up": is_on and not worker.is_cut_off,
            "listener_up": is_on and worker.listener.is_up,
            "held_jobs": worker.holds if is_on else 0,
            "stuck": worker.liveness.stuck() is not None,
            "loop_age_seconds": worker.liveness.age_seconds,
        }.items():
            yield _gauge(name, [], [[number]])
        executors = [
            one for work in worker.works for one in work.handler.executors(for_people=True)
        ]
        for name, field in OF_EXECUTORS.items():
            sums: Sums[str] = Sums()
            for one in executors:
                sums[one["provider"]] += one[field]
            yield _gauge(name, ["provider"], map(list, sums.items()))

    def _on_jobs(
        self, sender: events.Event, about: Claim | list[Claim], fields: dict[str, Any], **_: object
    ) -> None:
        claims = about if isinstance(about, list) else [about]
        for spec, count in Sums(claim.spec for claim in claims).items():
            self._counts[COUNTED[sender]].labels(spec).inc(count)
        if sender is events.JOBS_CLAIMED:
            self._claim_seconds.observe(fields["milliseconds"] / 1000)

    def _on_completed(self, about: Stored, fields: dict[str, Any], **_: object) -> None:
        for unit in about.units:
            spec = unit.claim.spec
            self._counts["completed"].labels(spec).inc()
            self._counts["chunks_embedded"].labels(spec).inc(unit.embedded)
            self._counts["chunks_reused"].labels(spec).inc(unit.reused)
            if unit.claim.id in about.waited:
                self._waits.labels(spec).observe(about.waited[unit.claim.id])
        self._store_seconds.observe(fields["milliseconds"] / 1000)

    def _on_tasks(self, about: list[tuple[Claim, float | None]], **_: object) -> None:
        for claim, waited in about:
            self._counts["completed"].labels(claim.spec).inc()
            if waited is not None:
                self._waits.labels(claim.spec).observe(waited)

    def _on_batch(
        self, sender: events.Event, about: Batch, fields: dict[str, Any], **_: object
    ) -> None:
        provider = about.pool.provider
        if sender is events.BATCH_EMBEDDED:
            outcome = "embedded"
            tokens = sum(provider.weigh_document(one.chunk.text) for one in about.wanted)
            self._tokens.labels(provider.alias).inc(tokens)
        elif sender is events.PROVIDER_PAUSED:
            outcome = "unavailable"
        elif fields["refused"] == fields["chunks"]:
            outcome = "refused"
        else:
            return  # a part was refused: BATCH_EMBEDDED counts the request
        if about.wanted:  # not a probe
            self._requests.labels(provider.alias, outcome).inc()
            self._latency.labels(provider.alias).observe(fields["milliseconds"] / 1000)
            self._fill.labels(provider.alias).observe(len(about.wanted) / provider.batch_size)


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
        read = _gauge("queue_read_seconds", [], [[time.monotonic() - started]])
        return [_up(is_up=True), read, *families(seen)]


def _up(*, is_up: bool) -> GaugeMetricFamily:
    return _gauge("queue_up", [], [[is_up]])


def _rows(spec: SpecStatus) -> float | None:
    space = spec.active or spec.building
    return space.coverage.rows if space and space.coverage else None


OF_SPECS: dict[str, Callable[[SpecStatus], float | None]] = {
    "jobs_running": lambda spec: spec.running.value,
    "oldest_change_seconds": lambda spec: spec.oldest_change_seconds or 0.0,
    "wait_p50_seconds": lambda spec: spec.p50_seconds,
    "wait_p99_seconds": lambda spec: spec.p99_seconds,
    "rows_per_second": lambda spec: spec.units_per_second,
    "backlog_eta_seconds": lambda spec: inf if spec.eta_seconds is None else spec.eta_seconds,
    "rows": _rows,
    "workers": lambda spec: spec.workers,
}
OF_KINDS: dict[str, Callable[[Backlog], float]] = {
    "jobs_ready": lambda one: one.waiting.value - one.later.value,
    "jobs_delayed": lambda one: one.later.value,
    "oldest_waiting_seconds": lambda one: one.oldest_seconds,
}
OF_QUEUES: dict[str, Callable[[QueueStatus], float | None]] = {
    "tasks_ready": lambda queue: queue.ready.value,
    "tasks_delayed": lambda queue: queue.later.value,
    "tasks_running": lambda queue: queue.running.value,
    "oldest_task_seconds": lambda queue: queue.oldest_seconds,
    "task_wait_p50_seconds": lambda queue: queue.p50_seconds,
    "task_wait_p99_seconds": lambda queue: queue.p99_seconds,
    "tasks_per_second": lambda queue: queue.units_per_second,
    "open_task_failures": lambda queue: queue.open_failures.value,
    "queue_workers": lambda queue: queue.workers,
}


def families(seen: Overview) -> Iterator[GaugeMetricFamily]:
    """Yield the gauges of an overview. An unknown value has no sample."""
    for name, of_spec in OF_SPECS.items():
        yield _gauge(name, ["spec"], ([spec.key, of_spec(spec)] for spec in seen.specs))
    for name, of_kind in OF_KINDS.items():
        # Two kinds always have a sample: alerts need one.
        found = {(spec.key, kind): 0.0 for spec in seen.specs for kind in ("write", "reconciler")}
        for spec in seen.specs:
            found |= {(spec.key, one.kind): of_kind(one) for one in spec.backlog}
        yield _gauge(name, ["spec", "kind"], ([*key, number] for key, number in found.items()))
    failures = {spec.key: spec.open_failures for spec in seen.specs} | seen.unknown
    failed = ([key, count.value] for key, count in failures.items())
    yield _gauge("open_failures", ["spec"], failed)
    coverage = (
        [spec.key, name, space.coverage.ratio]
        for spec in seen.specs
        for name, space in (("active", spec.active), ("building", spec.building))
        if space and space.coverage
    )
    yield _gauge("coverage_ratio", ["spec", "space"], coverage)
    states = (
        [spec.key, state, spec.verdict.state == state]
        for spec in seen.specs
        for state in status.STATES
    )
    yield _gauge("spec_state", ["spec", "state"], states)
    for name, of_queue in OF_QUEUES.items():
        yield _gauge(name, ["queue"], ([queue.key, of_queue(queue)] for queue in seen.queues))
    moving = (
        [queue.key, state, queue.verdict.state == state]
        for queue in seen.queues
        for state in status.QUEUE_STATES
    )
    yield _gauge("queue_state", ["queue", "state"], moving)
    if capture := seen.capture:
        yield _gauge("capture_is_read", [], [[capture.is_read]])
        yield _gauge("capture_lag_bytes", [], [[capture.lag_bytes]])
        yield _gauge("capture_lag_seconds", [], [[capture.lag_seconds]])
    yield _gauge("workers_alive", [], [[sum(worker.is_live for worker in seen.workers)]])
    yield _gauge(
        "provider_paused", ["provider"], ([one.name, one.is_away] for one in seen.providers)
    )


def _gauge(name: str, labels: list[str], samples: Iterable[list[Any]]) -> GaugeMetricFamily:
    """Return a gauge. A sample is its labels' values, then the number, or None if unknown."""
    family = GaugeMetricFamily(f"pgembed_{name}", _help(name), labels=labels)
    for *values, number in samples:
        if number is not None:
            family.add_metric(values, float(number))
    return family


def _help(name: str) -> str:
    """Return the text that a scrape shows. docs/reference/metrics.md explains each."""
    return name.replace("_", " ").capitalize()
