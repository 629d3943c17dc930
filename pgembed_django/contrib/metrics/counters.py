"""Count what one worker has done since it started, by receiving its events."""

from __future__ import annotations

from collections import Counter as Sums
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from pgembed_django import events
from pgembed_django.pipeline.units import Batch, Stored
from pgembed_django.queue.jobs import Claim

REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
STATEMENT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
WAIT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14_400)
FILL_BUCKETS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1)


class Counters:
    """Counts events for as long as something references it: signals hold receivers weakly."""

    def __init__(self, registry: CollectorRegistry, specs: Iterable[str]) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"pgembed_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"pgembed_{name}", text, labels, registry=registry, buckets=buckets)

        self._claimed = counter("claimed", "Jobs claimed", "spec")
        self._completed = counter("completed", "Jobs whose vectors were stored", "spec")
        self._embedded = counter("chunks_embedded", "Chunks with a new vector", "spec")
        self._reused = counter("chunks_reused", "Chunks that had their vector already", "spec")
        self._retried = counter("retried", "Attempts that failed, of jobs that come back", "spec")
        self._failed = counter("failed", "Jobs that have failed for good", "spec")
        self._released = counter("released", "Jobs given back with no attempt spent", "spec")
        self._lost = counter("leases_lost", "Jobs that are not this worker's any more", "spec")
        self._reaped = counter("leases_reaped", "Expired leases of lost workers", "spec")
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
        self._waits = histogram("wait_seconds", "From write to vectors", WAIT_BUCKETS, "spec")
        self._claim_seconds = histogram("claim_seconds", "How long a claim took", STATEMENT_BUCKETS)
        self._store_seconds = histogram(
            "store_seconds", "How long storing and completing took", STATEMENT_BUCKETS
        )
        for spec in specs:
            # Create the series at zero, so that Prometheus sees the first increase.
            for of_spec in (
                self._claimed,
                self._completed,
                self._embedded,
                self._reused,
                self._retried,
                self._failed,
                self._released,
                self._lost,
                self._reaped,
                self._waits,
            ):
                of_spec.labels(spec)
        for event, receiver in (
            (events.JOBS_CLAIMED, self._on_claimed),
            (events.JOBS_COMPLETED, self._on_completed),
            (events.JOB_RETRIED, self._on_retried),
            (events.JOB_FAILED, self._on_failed),
            (events.JOB_RELEASED, self._on_released),
            (events.LEASES_LOST, self._on_lost),
            (events.LEASE_EXPIRED, self._on_reaped),
            (events.BATCH_EMBEDDED, self._on_embedded),
            (events.BATCH_FAILED, self._on_refused),
            (events.PROVIDER_PAUSED, self._on_paused),
        ):
            events.happened.connect(receiver, sender=event)

    def _on_claimed(self, about: list[Claim], fields: dict[str, Any], **_: object) -> None:
        _add(self._claimed, about)
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

    def _on_retried(self, about: Claim, **_: object) -> None:
        _add(self._retried, [about])

    def _on_failed(self, about: Claim, **_: object) -> None:
        _add(self._failed, [about])

    def _on_released(self, about: Claim, **_: object) -> None:
        _add(self._released, [about])

    def _on_lost(self, about: list[Claim], **_: object) -> None:
        _add(self._lost, about)

    def _on_reaped(self, about: Claim, **_: object) -> None:
        _add(self._reaped, [about])

    def _on_embedded(self, about: Batch, fields: dict[str, Any], **_: object) -> None:
        provider = fields["provider"]
        self._tokens.labels(provider).inc(fields["tokens"])
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


def _add(counter: Counter, claims: list[Claim]) -> None:
    for spec, count in Sums(claim.spec for claim in claims).items():
        counter.labels(spec).inc(count)
