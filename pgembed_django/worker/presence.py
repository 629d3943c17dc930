"""The row that shows the admin that a worker is alive, and what it holds."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator

from django.db.models.functions import Now

from pgembed_django import __version__, conf, events, postgres
from pgembed_django.models import Worker as WorkerRow
from pgembed_django.pipeline import Pipeline
from pgembed_django.pool import Pool
from pgembed_django.providers import NotInstalled
from pgembed_django.text import clean, encodable

LATE_SECONDS = 20.0
"""After so long without an update by the loop, another thread updates the row."""

Name = Callable[[str, str, int], str]
"""Names a provider by its alias, model and dimensions."""


class Presence:
    """One worker's row, from its start to its end. Its key is the worker's id."""

    def __init__(self, specs: Iterable[str], *, using: str) -> None:
        self.using = using
        row = WorkerRow(
            host=socket.gethostname(), pid=os.getpid(), version=__version__, specs=list(specs)
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

    def report(self, pipeline: Pipeline) -> None:
        """Update the row, and log the progress."""
        if not self.update(pipeline):
            # Another worker took this one, frozen or cut off, for dead. Or there was a flush.
            WorkerRow.objects.using(self.using).bulk_create([self.row])
            self.update(pipeline)
        self._tell(pipeline.completed, holds=len(pipeline.holding.units))

    def update(self, pipeline: Pipeline) -> bool:
        """Update the row. Return whether it is there. Any thread may call it."""
        state = {
            "last_seen_at": Now(),
            "holds": len(pipeline.holding.units),
            "paused": self._encodable(_paused(pipeline, conf.provider_key)),
            "paused_seconds": {
                named: pool.paused_seconds
                for named, pool in _named(pipeline, conf.provider_key)
                if pool.is_down
            },
            "aside": self._encodable(aside(pipeline)),
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


def paused(pipeline: Pipeline) -> dict[str, str]:
    """Return the providers that are down or paused by hand, and why."""
    return _paused(pipeline, conf.current().provider_name)


def _paused(pipeline: Pipeline, name: Name) -> dict[str, str]:
    pools = list(_named(pipeline, name))
    down = {named: pool.reason for named, pool in pools if pool.is_down}
    by_hand = {
        named: f"Paused by {pool.paused_by}" for named, pool in pools if pool.paused_by is not None
    }
    return {what: clean(why) for what, why in (by_hand | down).items()}


def _named(pipeline: Pipeline, name: Name) -> Iterator[tuple[str, Pool]]:
    """Yield the pools with their providers' names.

    That of a lost one also names its space, if the same provider still serves another space.
    """
    pools = [
        (name(pool.provider.alias, pool.provider.model, pool.provider.dimensions), pool)
        for pool in pipeline.embedding.pools
    ]
    serving = {named for named, pool in pools if not pool.is_lost}
    for named, pool in pools:
        if isinstance(pool.provider, NotInstalled) and named in serving:
            yield conf.lost_name(named, pool.provider.space_id), pool
        else:
            yield named, pool


def aside(pipeline: Pipeline) -> dict[str, str]:
    """Return the keys of the specs that are set aside, and why."""
    return {spec.key: clean(why) for spec, why in list(pipeline.aside.reasons.items())}
