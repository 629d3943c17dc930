"""Let one worker at a time build indexes: two builds on one table wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import OperationalError

from pgembed_django import database, events
from pgembed_django.database import locks

# Only ever tried: a session that waited for it would hold a snapshot that the builder waits for.
LOCK = "pgembed_index_builder"

# No time-out ends a build or a drop: it waits for older transactions, however long.
# ``transaction_timeout`` is known since PostgreSQL 17.
TAKE_TIME = """
    SELECT set_config(name, '0', false)
    FROM pg_settings
    WHERE name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout')
"""


@contextmanager
def as_builder(using: str) -> Iterator[bool]:
    """Take the builders' lock, and yield whether it was free.

    A build that Postgres ended because of a deadlock is tried again later.
    """
    try:
        with locks.session_lock(LOCK, using=using) as is_builder:
            if is_builder:
                database.rows(using, TAKE_TIME)
            yield is_builder
    except OperationalError as error:
        # Another VACUUM or CREATE INDEX on the same table, and Postgres ended ours.
        if not isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
            raise
        events.tell(events.INDEX_POSTPONED, error=str(error).strip())
