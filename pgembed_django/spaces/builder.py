"""Let only one worker at a time build indexes: two builds on one table wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import OperationalError

from pgembed_django import database, events, locks

# Only ever try it: a session that waited for it would hold a snapshot, and the builder would wait
# for that.
LOCK = "pgembed_index_builder"

# No time-out may end a build or a drop: they wait for older transactions, however long it takes.
# ``transaction_timeout`` exists since PostgreSQL 17.
TAKE_TIME = """
    SELECT set_config(name, '0', false)
    FROM pg_settings
    WHERE name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout')
"""


@contextmanager
def as_builder(using: str) -> Iterator[bool]:
    """Try the builders' lock, and yield whether it was free.

    If Postgres ends a build because of a deadlock, this logs it: the build is tried again later.
    """
    try:
        with locks.session_lock(LOCK, using=using) as is_builder:
            if is_builder:
                database.rows(using, TAKE_TIME)
            yield is_builder
    except OperationalError as error:
        # A VACUUM or another CREATE INDEX on the same table: Postgres ended our build.
        if not isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
            raise
        events.tell(events.INDEX_POSTPONED, error=str(error).strip())
