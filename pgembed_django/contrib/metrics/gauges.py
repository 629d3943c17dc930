"""The queue's gauges, read from the database when they are scraped.

The cost is bounded, however large the tables are: counts stop at a limit, coverage is sampled,
statements have a time-out, and simultaneous scrapes share one reading.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from django.db import DatabaseError, InterfaceError, transaction
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pgembed_django import database, status
from pgembed_django.status import Overview

MAX_COUNT = 100_000
"""How many jobs per spec and priority are counted at most. Gauges do not rise above it."""

REMEMBER_SECONDS = 5.0
STATEMENT_SECONDS = 2.0
LOOK_SECONDS = 10.0
"""A reading that takes longer counts as failed: a frozen server does not even time out."""

TIME_OUT = "SELECT set_config('statement_timeout', %(milliseconds)s, true)"

Samples = Iterator[tuple[Sequence[str], float | None]]


class QueueCollector(Collector):
    """Reads the queue at most every ``REMEMBER_SECONDS``. Raises nothing if the database fails."""

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
    for name, text, labels, samples in (
        ("jobs_ready", "Jobs that could be claimed now", ["spec", "kind"], _ready(seen)),
        ("jobs_delayed", "Jobs that wait for their time", ["spec", "kind"], _delayed(seen)),
        ("jobs_running", "Jobs that workers hold", ["spec"], _running(seen)),
        (
            "oldest_waiting_seconds",
            "Age of the oldest job that waits",
            ["spec", "kind"],
            _oldest(seen),
        ),
        (
            "oldest_change_seconds",
            "Age of the oldest write or manual retry without its vectors",
            ["spec"],
            _oldest_change(seen),
        ),
        (
            "wait_p50_seconds",
            "From write to vectors, median of the last five minutes",
            ["spec"],
            (([one.key], one.p50_seconds) for one in seen.specs),
        ),
        (
            "wait_p99_seconds",
            "From write to vectors, 99th percentile of the last five minutes",
            ["spec"],
            (([one.key], one.p99_seconds) for one in seen.specs),
        ),
        (
            "rows_per_second",
            "Rows completed by all workers, mean of the last five minutes",
            ["spec"],
            (([one.key], one.units_per_second) for one in seen.specs),
        ),
        (
            "backlog_eta_seconds",
            "Until nothing waits, at the present rate. Infinite: nothing moves",
            ["spec"],
            _eta(seen),
        ),
        ("open_failures", "Rows that have failed for good", ["spec"], _failures(seen)),
        ("rows", "Source rows that a search should find", ["spec"], _rows(seen)),
        (
            "coverage_ratio",
            "Share of the rows that a search of this space finds",
            ["spec", "space"],
            _coverage(seen),
        ),
        (
            "spec_state",
            "1 for the state that the spec is in",
            ["spec", "state"],
            _states(seen),
        ),
        ("workers", "Live workers that work on the spec", ["spec"], _workers(seen)),
        (
            "workers_alive",
            "Live workers",
            [],
            iter([([], float(sum(one.is_live for one in seen.workers)))]),
        ),
        (
            "provider_paused",
            "1 where no worker may ask the provider: it is down, or paused by hand",
            ["provider"],
            (([one.name], float(one.is_down or bool(one.paused_by))) for one in seen.providers),
        ),
    ):
        family = GaugeMetricFamily(f"pgembed_{name}", text, labels=labels)
        for values, number in samples:
            if number is not None:
                family.add_metric(values, number)
        yield family


def _ready(seen: Overview) -> Samples:
    for spec in seen.specs:
        waiting = {one.kind: one.waiting.value - one.later.value for one in spec.backlog}
        for kind in _kinds(waiting):
            yield [spec.key, kind], waiting.get(kind, 0)


def _delayed(seen: Overview) -> Samples:
    for spec in seen.specs:
        later = {one.kind: one.later.value for one in spec.backlog}
        for kind in _kinds(later):
            yield [spec.key, kind], later.get(kind, 0)


def _oldest(seen: Overview) -> Samples:
    for spec in seen.specs:
        oldest = {one.kind: one.oldest_seconds for one in spec.backlog}
        for kind in _kinds(oldest):
            yield [spec.key, kind], oldest.get(kind, 0.0)


def _kinds(found: dict[str, int] | dict[str, float]) -> list[str]:
    """Return the kinds to report. Two always are: an alert cannot use an absent sample."""
    return list(dict.fromkeys(["write", "reconciler", *found]))


def _running(seen: Overview) -> Samples:
    return (([spec.key], spec.running.value) for spec in seen.specs)


def _oldest_change(seen: Overview) -> Samples:
    return (([spec.key], spec.oldest_change_seconds or 0.0) for spec in seen.specs)


def _eta(seen: Overview) -> Samples:
    for spec in seen.specs:
        yield [spec.key], float("inf") if spec.eta_seconds is None else spec.eta_seconds


def _failures(seen: Overview) -> Samples:
    yield from (([spec.key], spec.open_failures.value) for spec in seen.specs)
    yield from (([key], count.value) for key, count in seen.unknown.items())


def _rows(seen: Overview) -> Samples:
    for spec in seen.specs:
        space = spec.active or spec.building
        yield [spec.key], space.coverage.rows if space and space.coverage else None


def _coverage(seen: Overview) -> Samples:
    for spec in seen.specs:
        for name, space in (("active", spec.active), ("building", spec.building)):
            if space is not None and space.coverage is not None:
                yield [spec.key, name], space.coverage.ratio


def _states(seen: Overview) -> Samples:
    for spec in seen.specs:
        for state in status.STATES:
            yield [spec.key, state], float(spec.verdict.state == state)


def _workers(seen: Overview) -> Samples:
    return (([spec.key], spec.workers) for spec in seen.specs)


def _up(*, is_up: bool) -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "pgembed_queue_up", "1 where the queue could be read for this scrape", value=float(is_up)
    )
