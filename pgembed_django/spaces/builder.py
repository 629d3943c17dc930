"""One builder of indexes among all workers: of two on one table, each would wait for the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import OperationalError

from pgembed_django import database, events

# A session lock, which goes with the connection. Whoever waits for it in Postgres would hold a
# snapshot that the builder waits for: so it is only ever tried.
TRY_LOCK = "SELECT pg_try_advisory_lock(hashtextextended('pgembed_index_builder', 0))"
UNLOCK = "SELECT pg_advisory_unlock(hashtextextended('pgembed_index_builder', 0))"

# A build, or a drop, takes as long as it takes: it waits for older transactions, not for rows.
# ``transaction_timeout`` is known since PostgreSQL 17.
TAKE_TIME = """
    SELECT set_config(name, '0', false)
    FROM pg_settings
    WHERE name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout')
"""


@contextmanager
def as_builder(using: str) -> Iterator[bool]:
    """Be the one builder, if there is no other. A build that gave way is tried again later."""
    [[is_builder]] = database.rows(using, TRY_LOCK)
    try:
        if is_builder:
            database.rows(using, TAKE_TIME)
        yield is_builder
    except OperationalError as error:
        # Somebody else's VACUUM or CREATE INDEX on the same table, and Postgres chose us.
        if not isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
            raise
        events.tell(events.INDEX_POSTPONED, error=str(error).strip())
    finally:
        # Where the connection is gone the lock went with it, and what ended it is told.
        if is_builder and not database.is_lost(using):
            database.rows(using, UNLOCK)
