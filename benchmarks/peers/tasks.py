"""The task of the peers that are backends of ``django.tasks``."""

from __future__ import annotations

from django.tasks import task

from benchmarks.queue.handler import Handler

handler: Handler | None = None


@task
def handle(number: int) -> None:
    """Call the handler that ``drain`` has set."""
    assert handler is not None
    handler(number)
