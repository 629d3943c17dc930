"""Send a transaction's statements together, and wait as seldom as can be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import generators

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
OPEN = (psycopg.pq.TransactionStatus.INTRANS, psycopg.pq.TransactionStatus.INERROR)

_pipelines: WeakKeyDictionary[psycopg.Connection[Any], psycopg.Pipeline] = WeakKeyDictionary()


@contextmanager
def sent_together(wrapper: BaseDatabaseWrapper) -> Iterator[None]:
    """Begin, run and commit in a pipeline. Django's ``atomic`` would wait for each of the three."""
    connection = wrapper.connection
    with wrapper.wrap_database_errors:
        try:
            with connection.pipeline() as pipeline:
                _pipelines[connection] = pipeline
                cursor = psycopg.Cursor(connection)
                cursor.execute(BEGIN)
                yield
                cursor.execute("COMMIT")
        finally:
            _pipelines.pop(connection, None)
            if connection.info.transaction_status in OPEN:
                connection.rollback()


def synchronize(wrapper: BaseDatabaseWrapper) -> None:
    """Before an answer is waited for in a pipeline: ask for it so that the server waits for us.

    With a flush it would believe that more is on its way, and wait for that with its locks, as
    long as it takes. To Postgres such a transaction is not idle, and a worker that is frozen
    there, or whose host is gone, would not be cut off.
    """
    connection = wrapper.connection
    if (pipeline := _pipelines.get(connection)) is not None:
        with wrapper.wrap_database_errors:
            # sync() goes on to wait for answers once a socket has taken a part of what is sent,
            # and a server that has a part of a long text waits for the rest.
            connection.wait(generators.send(connection.pgconn))
            pipeline.sync()
