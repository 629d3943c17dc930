"""The decorator's migration on a table that is in use, and how long its writer waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState

from benchmarks.compare import Figures

APP, TABLE, CHUNKS = "app", "article", "articleembedding"
WAIT = "longest wait of a writer"
CALM_SECONDS = 0.5
WRITE = "UPDATE app_article SET views = views + 1 WHERE id = %s"


class _Writer:
    """Writes one row after another."""

    def __init__(self, url: str) -> None:
        self.longest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, args=(url,))

    def __enter__(self) -> _Writer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _write(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            number = 0
            while not self._over.is_set():
                started = time.perf_counter()
                connection.execute(WRITE, [number % 1000 + 1])
                self.longest = max(self.longest, time.perf_counter() - started)
                number += 1


def waits(using: str, url: str, *, is_added: bool) -> Callable[[], Figures]:
    """Return what measures the writer's longest wait, with the migration or without."""

    def measure() -> Figures:
        if is_added:
            _remove(using)
        with _Writer(url) as writer:
            time.sleep(CALM_SECONDS)
            started = time.perf_counter()
            if is_added:
                _add(using)
            taken = time.perf_counter() - started
            time.sleep(CALM_SECONDS)
        figures = {WAIT: 1000 * writer.longest}
        return {**figures, "the migration itself": 1000 * taken} if is_added else figures

    return measure


def _remove(using: str) -> None:
    """Leave the table as it was before it was decorated."""
    with connections[using].schema_editor() as editor:
        for trigger, _, _ in _operations(is_trigger=True):
            editor.execute(trigger.trigger.uninstall_sql, params=None)
        editor.execute("DROP TABLE app_articleembedding")


def _add(using: str) -> None:
    with connections[using].schema_editor() as editor:
        for operation, before, after in _operations():
            operation.database_forwards(APP, editor, before, after)


def _operations(*, is_trigger: bool = False) -> Iterator[tuple[Any, ProjectState, ProjectState]]:
    """Yield what the decorator has put into the migration, with the states around it."""
    loader = MigrationLoader(None)
    migration = loader.get_migration(APP, "0001_initial")
    state = loader.project_state([("pgembed", "0001_initial")])
    for operation in migration.operations:
        before = state.clone()
        operation.state_forwards(APP, state)
        model = (getattr(operation, "model_name", None) or operation.name).lower()
        if hasattr(operation, "trigger"):
            is_wanted = model == TABLE
        else:
            is_wanted = model == CHUNKS and not is_trigger
        if is_wanted:
            yield operation, before, state.clone()
