"""Gauges of one worker's present state. They are read in another thread, so change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from pgembed_django import __version__

if TYPE_CHECKING:
    from pgembed_django.queue.worker import Worker


class StateCollector(Collector):
    """Yields the gauges of a worker, which may not have started yet."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering does not ask the worker."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        worker = self._worker
        yield InfoMetricFamily("pgembed_worker", "This worker", {"version": __version__})
        for name, text, number in (
            ("running", "1 while it claims: started, and not stopping", worker.is_running),
            (
                "database_up",
                "0 while the database is away",
                worker.is_running and not worker.is_cut_off,
            ),
            (
                "listener_up",
                "1 while notifications are heard",
                worker.is_running and worker.listener.is_up,
            ),
            (
                "held_jobs",
                "Jobs it holds",
                worker.holds if worker.is_running else 0,
            ),
            ("stuck", "1 while its loop is stuck", worker.liveness.stuck() is not None),
            (
                "loop_age_seconds",
                "Since its loop came round last. Idle, it does so every few seconds",
                worker.liveness.age_seconds,
            ),
        ):
            yield GaugeMetricFamily(f"pgembed_{name}", text, value=float(number))
