"""Run a transaction in psycopg's pipeline mode: its statements do not wait for each answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import generators

from pgembed_django.database.interrupting import OPEN

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"

_pipelines: WeakKeyDictionary[psycopg.Connection[Any], psycopg.Pipeline] = WeakKeyDictionary()


@contextmanager
def pipelined(wrapper: BaseDatabaseWrapper) -> Iterator[None]:
    """Begin, run and commit in a pipeline. Django's ``atomic`` would wait for each answer."""
    connection = wrapper.connection
    with wrapper.wrap_database_errors:
        try:
            with connection.pipeline() as pipeline:
                _pipelines[connection] = pipeline
                cursor = psycopg.Cursor(connection)
                with _quiet_after_errors(pipeline):
                    cursor.execute(BEGIN)
                    yield
                    cursor.execute("COMMIT")
        finally:
            _pipelines.pop(connection, None)
            if connection.info.transaction_status in OPEN:
                connection.rollback()


@contextmanager
def _quiet_after_errors(pipeline: psycopg.Pipeline) -> Iterator[None]:
    """After an error, fetch the answers of the statements that were sent with the one that failed.

    Otherwise psycopg does so at the pipeline's end, and warns of them in its log: "error ignored".
    """
    try:
        yield
    except (Error, psycopg.Error):
        with suppress(psycopg.Error):
            pipeline.sync()
        raise


def synchronize(wrapper: BaseDatabaseWrapper) -> None:
    """Send a Sync after the statements so far, before anything waits for their answers.

    psycopg would send a Flush. After that Postgres expects more statements, and the session counts
    as active, not as idle in transaction. So ``idle_in_transaction_session_timeout`` would not end
    a session whose worker is frozen there, or whose host is gone, and its locks would stay.
    """
    connection = wrapper.connection
    if (pipeline := _pipelines.get(connection)) is not None:
        with wrapper.wrap_database_errors:
            # Send everything first: sync() would wait for answers as soon as the socket has taken
            # a part of it, while the server waits for the rest of a long text.
            connection.wait(generators.send(connection.pgconn))
            pipeline.sync()
