"""Whether a worker is ready: connected, listening, and with all migrations applied."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.db import DatabaseError, connections
from django.db.migrations.executor import MigrationExecutor

if TYPE_CHECKING:
    from pgembed_django.queue.worker import Worker


class Readiness:
    """Knows whether a worker is ready. Other threads ask it, over connections of their own."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._is_migrated = False
        self._looking = threading.Lock()

    def missing(self) -> list[str]:
        """Return the reasons why the worker is not ready. Empty: it is."""
        return list(self._missing())

    def _missing(self) -> Iterator[str]:
        worker = self._worker
        if not worker.is_running:
            yield "stopping" if worker.is_asked_to_stop else "starting"
            return
        if worker.liveness.stuck():
            yield "stuck"
        if worker.is_cut_off:
            yield "the database is away"
            return
        if worker.is_deaf:
            yield "not listening for notifications"
        if not self._is_migrated:
            # A frozen server never answers: only one request waits for it, not every thread.
            if not self._looking.acquire(blocking=False):
                yield "still looking at migrations"
                return
            try:
                yield from self._look_at_migrations()
            finally:
                self._looking.release()

    def _look_at_migrations(self) -> Iterator[str]:
        try:
            unapplied = self._unapplied()
        except DatabaseError as error:
            yield f"cannot look at migrations: {type(error).__name__}"
            return
        if unapplied:
            yield f"migrations are not applied: {', '.join(unapplied)}"
        self._is_migrated = not unapplied

    def _unapplied(self) -> list[str]:
        labels = {"pgembed"}
        for handler in self._worker.handlers:
            labels.update(handler.app_labels)
        connection = connections[self._worker.using]
        try:
            executor = MigrationExecutor(connection)
            leaves = [key for key in executor.loader.graph.leaf_nodes() if key[0] in labels]
            return [str(migration) for migration, _ in executor.migration_plan(leaves)]
        finally:
            connection.close()
