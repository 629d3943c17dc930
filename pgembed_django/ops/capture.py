"""Read how far workers have read the write-ahead log, and what hinders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg import sql

from pgembed_django.capture import slots
from pgembed_django.core import database, postgres
from pgembed_django.core.moments import seconds_between
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import publication

# Of a table that is published as a whole, REPLICA IDENTITY FULL tells the key as well.
IDENTITIES = """
    SELECT {spec}, is_usable IS NOT TRUE AND NOT (is_full AND is_whole)
    FROM ({identity}) AS identity
    JOIN (
        SELECT rel.prattrs IS NULL AS is_whole
        FROM pg_class AS source
        JOIN pg_namespace ON pg_namespace.oid = relnamespace
        JOIN pg_publication_tables AS published
          ON schemaname = nspname
         AND tablename = relname
        JOIN pg_publication AS publication USING (pubname)
        LEFT JOIN pg_publication_rel AS rel
          ON prpubid = publication.oid
         AND prrelid = source.oid
        WHERE pubname = {publication}
          AND source.oid = to_regclass({table})
    ) AS published
      ON true
"""

STANDBY_SECONDS = 60.0
"""A standby does not show who reads. A worker did if it noted so at most that long ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """The status of the replication slot that changes are read from."""

    slot: str
    is_read: bool
    """Whether a worker reads it."""
    problem: str
    """Why none does, as far as it is known. Empty: it is read, or will be within seconds."""
    lag_bytes: int | None
    """How much of the log is yet to be read. None: nothing was ever read."""
    lag_seconds: float | None
    """How old the oldest change that is yet to be read may be."""
    faults: dict[str, str]
    """Spec -> why not all changes of its table can be read."""
    gaps: tuple[str, ...]
    """The specs whose changes are not read from the present slot yet."""


def read_capture(specs: Sequence[Spec], *, using: str, now: datetime) -> CaptureStatus | None:
    """Return the status for those of the specs that need it. None: none does."""
    captured = [spec for spec in specs if spec.is_read_from_log]
    if not captured:
        return None
    seen = slots.look(using=using)
    noted = slots.note(seen.name, using=using)
    lag_bytes, lag_seconds = None, None
    if noted and noted.position is not None:
        lag_bytes = max(0, seen.end - noted.position)
        is_at_end = seen.is_active and lag_bytes < slots.AT_ONCE
        lag_seconds = 0.0 if is_at_end else max(0.0, seconds_between(noted.read_at, now))
    marks = noted.specs if noted else {}
    is_read = seen.is_active and seen.is_ours
    if seen.is_standby and noted and lag_seconds is not None:
        is_read = lag_seconds < STANDBY_SECONDS and not noted.problem
    return CaptureStatus(
        slot=seen.name,
        is_read=is_read,
        problem="" if is_read else seen.problem or (noted.problem if noted else ""),
        lag_bytes=lag_bytes,
        lag_seconds=lag_seconds,
        faults=dict(faults(captured, using=using)) if seen.publication else {},
        gaps=tuple(spec.key for spec in captured if marks.get(spec.key) is None),
    )


def faults(captured: Sequence[Spec], *, using: str) -> Mapping[str, str]:
    """Return why not all changes of specs' tables can be read, by spec key."""
    found = lost_identities(captured, using=using)
    published = slots.published(captured, using=using)
    for spec in captured:
        if spec.key not in published:
            found.setdefault(
                spec.key,
                f"The publication {publication.name()!r} does not have all changes of its table "
                f"{spec.model._meta.db_table}.",
            )
    return found


def lost_identities(captured: Sequence[Spec], *, using: str) -> dict[str, str]:
    """Return, by spec key, which tables are published and have no usable replica identity."""
    watched = {spec.key: spec for spec in captured if spec.capture == "wal"}
    queries = [
        sql.SQL(IDENTITIES).format(
            spec=sql.Literal(key),
            identity=sql.SQL(publication.identity_of(spec.model)),
            publication=sql.Literal(publication.name()),
            table=sql.Literal(postgres.quoted_table(spec.model)),
        )
        for key, spec in watched.items()
    ]
    if not queries:
        return {}
    rows = database.rows(using, sql.SQL(" UNION ALL ").join(queries).as_string(None))
    return {
        key: f"The replica identity of {watched[key].model._meta.db_table} does not have its key: "
        "the application's own UPDATEs fail."
        for key, is_lost in rows
        if is_lost
    }
