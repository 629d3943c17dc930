"""What a run raises to ask for another one, and how errors are described for people."""

from __future__ import annotations

import traceback
from datetime import datetime

from django.utils import timezone

from pgembed_django.core import faults
from pgembed_django.providers.errors import without_secrets
from pgembed_django.queue.jobs.settling import MAX_ERROR_CHARACTERS

MAX_LINE_CHARACTERS = 500
MAX_WAIT_SECONDS = 366 * 86400.0
"""The longest time until another run. The database has none for many more years."""

OURS = "pgembed_django/tasks/"
CUT = "Traceback (most recent call last):\n  …\n"


class Again(BaseException):
    """Raised by ``context.retry()``. No ``Exception``, so that no code of the task catches it."""

    def __init__(self, at: datetime | None, in_seconds: float) -> None:
        super().__init__("another run was asked for")
        seconds = (at - timezone.now()).total_seconds() if at else in_seconds
        # In this order, zero also stands for what is no number.
        self.seconds = min(max(0.0, seconds), MAX_WAIT_SECONDS)


def described(error: BaseException) -> str:
    """Return an error as it is stored: bounded, without secrets, never longer than a job keeps.

    Class and message are in the first line, and the end of the traceback follows.
    """
    kind = type(error)
    path = f"{kind.__module__}.{kind.__qualname__}"
    message = faults.message(error)
    message = "its message cannot be read" if message is None else " ".join(message.split())
    line = without_secrets(f"{path}: {message}" if message else path)
    if len(line) > MAX_LINE_CHARACTERS:
        line = f"{line[:MAX_LINE_CHARACTERS]}…"
    return f"{line}\n{_end(_trace(error), MAX_ERROR_CHARACTERS - len(line) - 1)}"


def _trace(error: BaseException) -> str:
    """Return the traceback without our own frames, which call the function."""
    try:
        told = traceback.TracebackException.from_exception(error)
        told.stack = traceback.StackSummary.from_list(
            [frame for frame in told.stack if OURS not in frame.filename.replace("\\", "/")]
        )
        return without_secrets("".join(told.format()))
    except Exception:  # noqa: BLE001 - the exception's class is a project's own
        return ""


def _end(trace: str, room: int) -> str:
    """Return the last whole lines of a traceback: where it was raised."""
    if len(trace) <= room:
        return trace
    end = trace[-(room - len(CUT)) :]
    _, newline, lines = end.partition("\n")
    return CUT + (lines if newline and lines else end)
