"""The write-ahead log instead of triggers: read what was committed, and enqueue it.

One worker at a time reads, over a replication slot of its database. In the same transaction as the
jobs it notes how far it has read, and then tells the server. So a change is enqueued once, whenever
the worker is killed: ``streamer`` has the whole way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pgembed_django.capture import slots
from pgembed_django.capture.streamer import Streamer
from pgembed_django.queue.maintenance import Chore

__all__ = ["Streamer", "chore", "endless_chores"]

TRY_SECONDS = 1.0
"""How often to look whether the slot is free."""

SWITCHED_SECONDS = 60.0
"""How often to look for specs that triggers watch by now."""


def endless_chores(*, using: str, is_stopping: Callable[[], bool]) -> Sequence[Chore]:
    """Return what reads the log, if the changes of any spec come from there."""
    if not slots.captured(using):
        return []
    return [Chore(TRY_SECONDS, Streamer(using=using, is_stopping=is_stopping).stream)]


def chore(*, using: str) -> Chore:
    """Return what sees to specs that no longer need it."""
    return Chore(SWITCHED_SECONDS, Streamer(using=using).compare_switched)
