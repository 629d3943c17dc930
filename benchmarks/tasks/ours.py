"""Ours: ``embed_worker`` with 32 threads for tasks, which claims 50 at once."""

from __future__ import annotations

import json
import logging
import os
import statistics
from collections.abc import Sequence
from typing import Any

import django

from benchmarks.compare import Figures
from benchmarks.peers.producer import Producer
from benchmarks.queue.handler import AT_ONCE, BATCH, Handler
from benchmarks.tasks.handlers import Timed

SETTINGS = {
    "TASKS": {
        "default": {"BACKEND": "pgembed_django.tasks.PostgresBackend", "QUEUES": ["default"]}
    },
    "PGEMBED_TASKS_CONCURRENCY": AT_ONCE,
    "PGEMBED_CLAIM_LIMIT": BATCH,
    "PGEMBED_RECONCILE_SECONDS": 0,
}


def set_up(**settings: Any) -> None:
    """Set Django up for the database that DATABASE_URL names."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    os.environ["BENCHMARK_SETTINGS"] = json.dumps({**SETTINGS, **settings})
    django.setup()
    logging.disable(logging.INFO)  # as with the peers that are task backends


def fill(url: str, count: int) -> None:
    """Add jobs."""
    set_up()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    producer(url).many(range(count))


def producer(url: str) -> Producer:
    """Return what adds jobs."""
    set_up()
    from benchmarks.peers import tasks
    from pgembed_django.tasks import enqueue_many

    def many(numbers: Sequence[int]) -> None:
        enqueue_many(tasks.handle, [{"number": number} for number in numbers])

    return Producer(tasks.handle.enqueue, many)


def drain(url: str, handler: Handler) -> None:
    """Handle all jobs."""
    set_up()
    from django.core.management import call_command

    from benchmarks.peers import tasks

    tasks.handler = handler
    if isinstance(handler, Timed):
        handler.beside = Claims().figures
    call_command("embed_worker", verbosity=0)


def p99_wait() -> float:
    """Return how long tasks have waited for their start, in seconds, as ``embed_status`` does."""
    from django.utils import timezone

    from pgembed_django.queue import rollups

    return rollups.recent(using="default", now=timezone.now())["default"].quantile(0.99) or 0.0


class Claims:
    """What the worker's events tell about its claims."""

    def __init__(self) -> None:
        from pgembed_django import events

        self._milliseconds: list[float] = []
        self._tasks = self._reaped = 0
        events.happened.connect(self._on_claimed, sender=events.JOBS_CLAIMED)
        events.happened.connect(self._on_expired, sender=events.LEASE_EXPIRED)

    def figures(self) -> Figures:
        """Return the mean time and size of a claim, and the share of leases that ran out."""
        return {
            "claim ms": statistics.fmean(self._milliseconds),
            "tasks a claim": self._tasks / len(self._milliseconds),
            "reaped": self._reaped / self._tasks,
        }

    def _on_claimed(self, fields: dict[str, Any], **_: object) -> None:
        self._milliseconds.append(fields["milliseconds"])
        self._tasks += fields["count"]

    def _on_expired(self, **_: object) -> None:
        self._reaped += 1
