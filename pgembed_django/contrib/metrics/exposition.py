"""Render the metrics for a scrape, from a registry that the application's metrics are not in."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from django.db import connections
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from pgembed_django.contrib.metrics.counters import Counters
from pgembed_django.contrib.metrics.gauges import QueueCollector
from pgembed_django.contrib.metrics.state import StateCollector

if TYPE_CHECKING:
    from pgembed_django.queue.worker import Worker


class Exposition:
    """A registry, and a reference that keeps its counters from being garbage-collected."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters: Counters | None = None

    @classmethod
    def of_queue(cls, using: str) -> Exposition:
        """Return the queue's gauges only: a web process is one of many, and counts nothing."""
        exposition = cls()
        exposition._registry.register(cls.queue_collector(using))
        return exposition

    @classmethod
    def of_worker(cls, worker: Worker) -> Exposition:
        """Return a worker's counters from now on, and the queue's gauges."""
        exposition = cls()
        # Keep a reference: signals hold their receivers weakly.
        exposition._counters = Counters(exposition._registry, worker.specs)
        exposition._registry.register(StateCollector(worker))
        exposition._registry.register(cls.queue_collector(worker.using))
        ProcessCollector(registry=exposition._registry)
        return exposition

    @staticmethod
    def queue_collector(using: str) -> Collector:
        """Return the collector that all scrapes of one queue share, with its cache."""
        return _queue_collector(using, getattr(connections[using], "schema_name", None))

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the body and its content type, in the format that was asked for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


@functools.cache
def _queue_collector(using: str, schema: str | None) -> QueueCollector:
    """Return the collector of a schema, always the same one.

    django-tenants sets the tenant's schema on the connection.
    """
    return QueueCollector(using=using)
