"""django-ox with 32 threads. It polls: every 10 ms, so that it starts jobs soon."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers import project
from benchmarks.peers.producer import Producer
from benchmarks.queue.handler import AT_ONCE, Handler

MOST_JOBS = 20_000
POLL_SECONDS = 0.01


def _set_up(url: str) -> None:
    project.set_up(url, apps=["django_ox"], backend="django_ox.backend.OxBackend")


def fill(url: str, count: int) -> None:
    """Add jobs."""
    _set_up(url)
    project.migrate()
    _producer().many(range(count))
    project.analyse()


def producer(url: str) -> Producer:
    """Return what adds jobs."""
    _set_up(url)
    return _producer()


def _producer() -> Producer:
    from django_ox.bulk import enqueue_many

    from benchmarks.peers import tasks

    def many(numbers: Sequence[int]) -> None:
        enqueue_many(tasks.handle, [((number,), {}) for number in numbers])

    return Producer(tasks.handle.enqueue, many)


def drain(url: str, handler: Handler) -> None:
    """Handle all jobs."""
    _set_up(url)
    from django.core.management import call_command

    from benchmarks.peers import tasks

    tasks.handler = handler
    call_command("ox_worker", concurrency=AT_ONCE, interval=POLL_SECONDS)
