"""Metrics of queues and of the tasks that a worker has run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pgembed_django import conf
from pgembed_django.contrib.metrics import collectors
from pgembed_django.models import Task, Worker
from pgembed_django.queue import rollups
from pgembed_django.queue.work import Work
from pgembed_django.tasks.handler import TaskHandler
from pgembed_django.testing import run_tasks
from tests.app import tasks

pytestmark = pytest.mark.django_db


def samples(*found: Any) -> dict[tuple[str, str], float]:
    """Return values by name and spec or queue."""
    return {
        (sample.name, sample.labels.get("queue") or sample.labels.get("spec", "")): sample.value
        for family in found
        for sample in family.samples
    }


def of_queues() -> dict[tuple[str, str], float]:
    return samples(*collectors.QueueCollector(using="default").collect())


@pytest.fixture
def counted() -> Any:
    """A worker's counters, as a scrape has them."""
    registry = CollectorRegistry()
    worker: Any = SimpleNamespace(
        specs=["default", "app.NoteEmbedding"],
        is_running=False,
        liveness=SimpleNamespace(stuck=lambda: None, age_seconds=0),
    )
    collector = collectors.WorkerCollector(worker, registry)

    def read() -> dict[tuple[str, str], float]:
        assert collector
        shown = generate_latest(registry).decode()
        return samples(*text_string_to_metric_families(shown))

    return read


def test_what_waits_runs_and_fails_is_told_of_each_queue(settings: Any) -> None:
    settings.PGEMBED_MAX_ATTEMPTS = 1
    Worker.objects.create(host="host", pid=1, version="1", specs=["default"])
    tasks.fail.enqueue("no")
    run_tasks()
    tasks.add.enqueue(1, 2)
    tasks.add.enqueue(1, 2)
    Task.objects.filter(status="pending").update(run_at="2030-01-01T00:00Z")
    tasks.add.using(queue_name="llm").enqueue(1, 2)
    tally = rollups.Tally()
    tally.completed("default", waited=2.0)
    tally.flush(using="default")

    found = of_queues()

    assert found["pgembed_tasks_ready", "default"] == 0
    assert found["pgembed_tasks_delayed", "default"] == 2
    assert found["pgembed_tasks_ready", "llm"] == 1
    assert found["pgembed_open_task_failures", "default"] == 1
    assert found["pgembed_queue_workers", "default"] == 1
    assert found["pgembed_task_wait_p99_seconds", "default"] == pytest.approx(2.0, rel=0.4)
    assert ("pgembed_task_wait_p99_seconds", "llm") not in found


def test_a_worker_counts_claims_completions_and_waits_of_tasks(counted: Any) -> None:
    tasks.add.enqueue(1, 2)
    tasks.note_once.enqueue("within completing()")

    run_tasks()

    found = counted()
    assert found["pgembed_claimed_total", "default"] == 2
    assert found["pgembed_completed_total", "default"] == 2
    assert found["pgembed_wait_seconds_count", "default"] == 2


def test_a_queue_has_no_chunks(counted: Any) -> None:
    found = counted()

    assert ("pgembed_chunks_embedded_total", "default") not in found
    assert ("pgembed_chunks_embedded_total", "app.NoteEmbedding") in found


def test_roll_ups_count_what_completing_has_completed_with_its_wait() -> None:
    tasks.note_once.enqueue("within completing()")
    handler = TaskHandler(["default"], using="default", concurrency=1)
    work = Work(handler, using="default", worker_id=0, settings=conf.current(), inline=True)
    while work.step():
        pass
    work.held.tally.flush(using="default")

    [point] = rollups.recent(using="default", now=timezone.now()).values()
    assert (point.completed, sum(point.waits)) == (1, 1)
