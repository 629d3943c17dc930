"""django-ox with 32 threads."""

from __future__ import annotations

from benchmarks.peers import project
from benchmarks.queue.handler import AT_ONCE, Handler

MOST_JOBS = 20_000


def _set_up(url: str) -> None:
    project.set_up(url, apps=["django_ox"], backend="django_ox.backend.OxBackend")


def fill(url: str, count: int) -> None:
    """Add jobs."""
    _set_up(url)
    project.migrate()
    from django_ox.bulk import enqueue_many

    from benchmarks.peers import tasks

    enqueue_many(tasks.handle, [((number,), {}) for number in range(count)])
    project.analyse()


def drain(url: str, handler: Handler) -> None:
    """Handle all jobs."""
    _set_up(url)
    from django.core.management import call_command

    from benchmarks.peers import tasks

    tasks.handler = handler
    call_command("ox_worker", concurrency=AT_ONCE)
