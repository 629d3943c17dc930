"""A database session that only counts: what searches notice of any busy processor."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import psycopg
from psycopg import errors

COUNT = "SELECT sum(number) FROM (SELECT generate_series(1, 1000000000000) AS number) AS numbers"
"""Runs for days without reading or writing anything."""


@contextlib.contextmanager
def session() -> Iterator[None]:
    """Count in a session of its own meanwhile. It needs DATABASE_URL."""
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        counting = threading.Thread(target=_count, args=[connection])
        counting.start()
        try:
            yield
        finally:
            connection.cancel_safe()
            counting.join()


def _count(connection: psycopg.Connection) -> None:
    with contextlib.suppress(errors.QueryCanceled):
        connection.execute(COUNT)
