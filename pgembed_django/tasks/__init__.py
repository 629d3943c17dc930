"""Payload jobs: calls of functions, by Django's API for tasks, on our queue.

Imports no models, so that modules with tasks may be imported at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgembed_django.exceptions import Canceled, LeaseLost
from pgembed_django.tasks.backend import PostgresBackend, enqueue_many
from pgembed_django.tasks.declaration import Task, task

if TYPE_CHECKING:
    from pgembed_django.tasks.batches import Batch, batch

__all__ = [
    "Batch",
    "Canceled",
    "LeaseLost",
    "PostgresBackend",
    "Task",
    "batch",
    "cancel",
    "enqueue_many",
    "task",
]


def cancel(result: Any) -> str:
    """Cancel a task, given by its result or the result's id.

    Returns:
        "canceled": it had not begun, and is deleted.
        "asked": it runs. It ends when it looks at ``context.is_canceled`` or ``context.check()``.
        "gone": it has ended, or there never was one.
        "busy": another transaction has locked it: it completes, say. Try again.
    """
    from pgembed_django.tasks import canceling

    return canceling.cancel(result)


def __getattr__(name: str) -> Any:
    """Import on demand what needs models."""
    if name in {"Batch", "batch"}:
        from pgembed_django.tasks import batches

        return getattr(batches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
