"""Run the decorator's migration on a table in use, and measure how long its writer waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg
from django.db import connections
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader

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
    """Return a function that measures the writer's longest wait, with or without the migration."""

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
    """Restore the table to what it was before it was decorated."""
    with connections[using].schema_editor() as editor:
        for operation in _migration().operations:
            if hasattr(operation, "trigger"):
                editor.execute(operation.trigger.uninstall_sql, params=None)
        editor.execute("DROP TABLE app_articleembedding")


def _add(using: str) -> None:
    """Do what ``migrate`` does, in one transaction, with Django's own work in between."""
    state = MigrationLoader(None).project_state([("app", "0001_initial")])
    state.remove_model(APP, CHUNKS)
    state.models[APP, TABLE].options.pop("triggers")
    migration = _migration()
    with connections[using].schema_editor(atomic=True) as editor:
        migration.apply(state, editor)


def _migration() -> Migration:
    """Return the operations that the decorator added to the app's migration, in order."""
    whole = MigrationLoader(None).get_migration(APP, "0001_initial")
    migration = Migration("decorated", APP)
    for operation in whole.operations:
        model = (getattr(operation, "model_name", None) or operation.name).lower()
        if model == (TABLE if hasattr(operation, "trigger") else CHUNKS):
            migration.operations.append(operation)
    return migration
