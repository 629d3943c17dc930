"""The partitions of kept results: one for each month in which tasks have ended.

Those of this month and the next are made ahead. A record is no longer found once it has expired,
but stays until all of its month have: then the partition is dropped, which leaves no dead rows
behind, and nothing for vacuum to do.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from django.db import connections

from pgembed_django.core import database, locks
from pgembed_django.triggers import sql

LOCK = "pgembed_record_partitions"
LIMIT = 5000

OLD = """
    SELECT
        part.oid::regclass::text,
        bounds[1]::timestamptz AS since,
        bounds[2]::timestamptz AS until,
        inhdetachpending,
        pg_has_role(part.relowner, 'USAGE')
    FROM pg_inherits
    JOIN pg_class AS part ON part.oid = inhrelid
    CROSS JOIN LATERAL regexp_match(
        pg_get_expr(part.relpartbound, part.oid), $$FROM \\('(.*)'\\) TO \\('(.*)'\\)$$
    ) AS bounds
    WHERE inhparent = to_regclass('pgembed_taskrecord')
      AND bounds[2]::timestamptz <= statement_timestamp()
    ORDER BY since
"""
# A worker was ended after it had detached them.
DETACHED = """
    SELECT part.oid::regclass::text
    FROM pg_class AS part
    JOIN pg_class AS records ON records.oid = to_regclass('pgembed_taskrecord')
    WHERE part.relname ~ '^pgembed_taskrecord_[0-9]{4}_[0-9]{2}$'
      AND part.relnamespace = records.relnamespace
      AND part.relkind = 'r'
      AND NOT part.relispartition
      AND pg_has_role(part.relowner, 'USAGE')
"""
HAS_UNEXPIRED = """
    SELECT EXISTS (
        SELECT
        FROM pgembed_taskrecord
        WHERE finished_at >= %(since)s
          AND finished_at < %(until)s
          AND expires_at > statement_timestamp()
    )
"""
DELETE_EXPIRED = """
    DELETE FROM pgembed_taskrecord
    WHERE finished_at >= %(since)s
      AND finished_at < %(until)s
      AND (id, finished_at) IN (
          SELECT id, finished_at
          FROM pgembed_taskrecord
          WHERE finished_at >= %(since)s
            AND finished_at < %(until)s
            AND expires_at <= statement_timestamp()
          LIMIT %(limit)s
          FOR UPDATE SKIP LOCKED
      )
"""


class Month(NamedTuple):
    """A partition whose month is over."""

    name: str
    since: datetime
    until: datetime
    is_half_detached: bool
    """Whether a worker was ended while it detached it."""
    is_ours: bool
    """Whether this role may detach and drop it."""


def make_partitions(*, using: str) -> None:
    """Make the partitions of this month and the next, if they are missing."""
    statement = f"SELECT {sql.qualified('pgembed_record_partitions_v1')}()"
    # Busy: another worker is making them.
    with suppress(database.Busy), database.giving_way(using):
        database.rows(using, statement)


def drop_expired(*, using: str) -> None:
    """Drop the partitions of past months whose records have all expired.

    They are detached concurrently, so this waits for older transactions, and nothing waits for it.
    A role that does not own the table deletes the expired rows instead, a batch at a time.
    """
    with locks.session_lock(LOCK, using=using) as is_free:
        if not is_free:
            return
        for [name] in database.rows(using, DETACHED):
            _run(f"DROP TABLE {name}", using=using)
        for month in [Month(*row) for row in database.rows(using, OLD)]:
            within = {"since": month.since, "until": month.until}
            if not month.is_ours:
                database.execute(using, DELETE_EXPIRED, limit=LIMIT, **within)
            elif month.is_half_detached or database.rows(using, HAS_UNEXPIRED, **within) == [
                (False,)
            ]:
                how = "FINALIZE" if month.is_half_detached else "CONCURRENTLY"
                _run(
                    f"ALTER TABLE pgembed_taskrecord DETACH PARTITION {month.name} {how}",
                    using=using,
                )
                _run(f"DROP TABLE {month.name}", using=using)


def _run(statement: str, *, using: str) -> None:
    """Run a statement with names as Postgres has printed them."""
    with connections[using].cursor() as cursor:
        cursor.execute(statement, None)
