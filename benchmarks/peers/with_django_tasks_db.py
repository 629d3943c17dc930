"""django-tasks' database backend, whose worker runs one task at a time. It polls every 10 ms."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers import project
from benchmarks.peers.producer import Producer
from benchmarks.queue.handler import Handler

MOST_JOBS = 5_000
POLL_SECONDS = 0.01


def _set_up(url: str) -> None:
    project.set_up(url, apps=["django_tasks_db"], backend="django_tasks_db.DatabaseBackend")


def fill(url: str, count: int) -> None:
    """Add jobs."""
    _set_up(url)
    project.migrate()
    _producer().many(range(count))
    project.analyse()


def producer(url: str) -> Producer:
    """Return what adds jobs. There is no bulk form: many are enqueued in one transaction."""
    _set_up(url)
    return _producer()


def _producer() -> Producer:
    from django.db import transaction

    from benchmarks.peers import tasks

    def many(numbers: Sequence[int]) -> None:
        with transaction.atomic():
            for number in numbers:
                tasks.handle.enqueue(number)

    return Producer(tasks.handle.enqueue, many)


def drain(url: str, handler: Handler) -> None:
    """Handle all jobs."""
    _set_up(url)
    from django.core.management import call_command

    from benchmarks.peers import tasks

    tasks.handler = handler
    call_command("db_worker", queue_name="*", startup_delay=False, interval=POLL_SECONDS)
