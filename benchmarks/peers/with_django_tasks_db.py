"""django-tasks' database backend, whose worker runs one task at a time."""

from __future__ import annotations

from benchmarks.peers import project
from benchmarks.queue.handler import Handler

MOST_JOBS = 5_000


def _set_up(url: str) -> None:
    project.set_up(url, apps=["django_tasks_db"], backend="django_tasks_db.DatabaseBackend")


def fill(url: str, count: int) -> None:
    """Add jobs."""
    _set_up(url)
    project.migrate()
    from django.db import transaction

    from benchmarks.peers import tasks

    with transaction.atomic():
        for number in range(count):
            tasks.handle.enqueue(number)
    project.analyse()


def drain(url: str, handler: Handler) -> None:
    """Handle all jobs."""
    _set_up(url)
    from django.core.management import call_command

    from benchmarks.peers import tasks

    tasks.handler = handler
    call_command("db_worker", queue_name="*", startup_delay=False)
