"""The row that shows the admin that a worker is alive, and what it holds."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db.models.functions import Now

from pgembed_django import __version__, events, postgres
from pgembed_django.models.operations import Worker as WorkerRow
from pgembed_django.queue.handler import Hindrances
from pgembed_django.text import clean, encodable

if TYPE_CHECKING:
    from pgembed_django.queue.work import Work

LATE_SECONDS = 20.0
"""After so long without an update by the loop, another thread updates the row."""


class Presence:
    """One worker's row, from its start to its end. Its key is the worker's id."""

    def __init__(self, specs: Sequence[str], *, using: str) -> None:
        self.using = using
        row = WorkerRow(
            host=socket.gethostname(), pid=os.getpid(), version=__version__, specs=[*specs]
        )
        # bulk_create() sends no signals: an error in a receiver must not end the worker.
        [self.row] = WorkerRow.objects.using(using).bulk_create([row])
        self._told = 0
        self._told_at = self._updated_at = time.monotonic()

    def __str__(self) -> str:
        return str(self.row)

    @property
    def is_late(self) -> bool:
        """Whether the loop has been too busy to update the row."""
        return time.monotonic() - self._updated_at > LATE_SECONDS

    def report(self, works: Sequence[Work]) -> None:
        """Update the row, and log the progress."""
        if not self.update(works):
            # Another worker took this one, frozen or cut off, for dead. Or there was a flush.
            WorkerRow.objects.using(self.using).bulk_create([self.row])
            self.update(works)
        self._tell(sum(work.completed for work in works), holds=_holds(works))

    def update(self, works: Sequence[Work]) -> bool:
        """Update the row. Return whether it is there. Any thread may call it."""
        found = hindrances(works)
        state: dict[str, Any] = {
            "last_seen_at": Now(),
            "holds": _holds(works),
            "paused": self._encodable(found.paused),
            "paused_seconds": found.paused_seconds,
            "aside": self._encodable(found.quarantined),
        }
        self._updated_at = time.monotonic()
        return bool(WorkerRow.objects.using(self.using).filter(pk=self.row.pk).update(**state))

    def end(self) -> None:
        """Delete the row."""
        WorkerRow.objects.using(self.using).filter(pk=self.row.pk).delete()

    def _encodable(self, reasons: dict[str, str]) -> dict[str, str]:
        """Return the reasons as jsonb can store them: it takes every escape only in UTF-8."""
        if postgres.encoding(self.using) == "UTF8":
            return reasons
        return {what: encodable(why, "ascii") for what, why in reasons.items()}

    def _tell(self, completed: int, *, holds: int) -> None:
        """Log how many units were completed since the last call, if any."""
        rows, seconds = completed - self._told, time.monotonic() - self._told_at
        if rows:
            events.tell(events.WORKER_PROGRESS, rows=rows, seconds=seconds, holds=holds)
        self._told, self._told_at = completed, time.monotonic()


def hindrances(works: Sequence[Work], *, for_people: bool = False) -> Hindrances:
    """Return what keeps a worker from some of its jobs."""
    total = Hindrances()
    for work in works:
        found = work.handler.hindrances(for_people=for_people)
        total.paused |= {what: clean(why) for what, why in found.paused.items()}
        total.paused_seconds |= found.paused_seconds
        total.quarantined |= {what: clean(why) for what, why in found.quarantined.items()}
    return total


def _holds(works: Sequence[Work]) -> int:
    return sum(len(work.held.jobs) for work in works)
