"""Follow what migrations and restores do past us: renamed models and columns, sequences.

Also delete what is left of specs whose model or @embeddable is gone.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.db import DatabaseError, ProgrammingError, connections, transaction
from django.db.models import AutoField, Count
from psycopg import sql

from pgembed_django import events
from pgembed_django.core import database, faults, postgres
from pgembed_django.declaration import specs
from pgembed_django.models import (
    Attempt,
    Job,
    Pause,
    Ripple,
    Rollup,
    ScanCursor,
    Space,
    StagedVector,
)
from pgembed_django.queue import jobs, rollups
from pgembed_django.spaces import stored
from pgembed_django.spaces.lifecycle import adoptable
from pgembed_django.triggers import installed

IS_MIGRATED = "SELECT to_regclass('pgembed_space') IS NOT NULL"
# Keyed by the table, because several schemas of one database may be migrated side by side.
TRY_LOCK = """
    SELECT pg_try_advisory_xact_lock(
        hashtextextended('pgembed_renaming', 'pgembed_space'::regclass::oid::bigint)
    )
"""

TRY_SECONDS = 5.0
LOOK_SECONDS = 0.05
"""For how long and at which intervals to try to lock a table that writers have locked."""

READABLE = """
    SELECT name
    FROM unnest(%(names)s::text[]) AS wanted(name)
    WHERE has_table_privilege(to_regclass(name)::oid, 'SELECT')
      -- A worker's read would raise here. It sets such a spec aside later.
      AND NOT row_security_active(to_regclass(name)::oid)
    ORDER BY name
"""
NUMBERED = """
    WITH numbered AS MATERIALIZED (
        SELECT
            relation,
            highest,
            pg_get_serial_sequence(relation, 'id')::regclass AS sequence
        FROM ({tables}) AS rows(relation, highest)
    ),
    behind AS MATERIALIZED (
        SELECT *
        FROM numbered
        -- CASE, so that a role without the right to read the sequence does not try to.
        WHERE CASE
            WHEN has_sequence_privilege(sequence, 'SELECT')
            THEN highest > COALESCE(pg_sequence_last_value(sequence), 0)
        END
    )
"""
TABLE = "SELECT {relation}, (SELECT max(id) FROM {table})"
BEHIND = "SELECT relation FROM behind ORDER BY relation"
# The sequence is read once more, so that it is never set back: another process may have advanced
# it meanwhile, and writers may have taken further ids.
ADVANCE = """
    SELECT
        relation,
        setval(sequence, GREATEST(highest, pg_sequence_last_value(sequence)))
    FROM behind
    WHERE has_sequence_privilege(sequence, 'UPDATE')
    ORDER BY relation
"""

LEFT: Mapping[str, Any] = {
    "jobs": Job,
    "attempts": Attempt,
    "ripples": Ripple,
    "spaces": Space,
    "staged vectors": StagedVector,
    "scans": ScanCursor,
    "sums for charts": Rollup,
}
"""The tables of ours that hold rows of specs, by what people call these."""


def after_migrate(sender: object, *, using: str, plan: object = None, **_: Any) -> None:
    """Receive ``post_migrate``, whose role may do more than a worker's. A flush has no plan."""
    if connections[using].vendor != "postgresql":
        return
    advance_sequences(using=using)
    if database.rows(using, IS_MIGRATED) == [(True,)]:
        follow_renames(using=using)  # so that searches find vectors before a worker is started
    if plan is not None:
        repair_triggers(using=using)


# Sequences


def sequences_behind(*, using: str) -> list[str]:
    """Return our tables whose sequence is behind: the next row would get an id that is taken."""
    return _of_sequences(BEHIND, using=using)


def advance_sequences(*, using: str) -> None:
    """Set the sequences of our tables past the highest ids, except where this role may not.

    Rows that come with their ids do not advance a sequence: logical replication, which does not
    copy sequences, and a restore of single tables bring such rows. As triggers add jobs in the
    writer's transaction, the application's own write would fail.
    """
    if tables := _of_sequences(ADVANCE, using=using):
        events.tell(events.NUMBERS_CAUGHT_UP, tables=", ".join(tables))


def _of_sequences(statement: str, *, using: str) -> list[str]:
    ours = [*apps.get_app_config("pgembed").get_models()]
    vectors = [spec.embedding_model for spec in specs.on(using)]
    names = [
        postgres.quoted_table(model)
        for model in (*ours, *vectors)
        # The ids of spaces do not come from a sequence: see ``lifecycle``.
        if isinstance(model._meta.pk, AutoField) and model is not Space
    ]
    tables = [
        sql.SQL(TABLE).format(relation=sql.Literal(name), table=sql.SQL(name))
        for [name] in database.rows(using, READABLE, names=names)
    ]
    if not tables:
        return []
    numbered = sql.SQL(NUMBERED).format(tables=sql.SQL(" UNION ALL ").join(tables))
    # As a str, because execute wrappers and query caches of other packages read it.
    asked = (numbered + sql.SQL(statement)).as_string(None)
    return [row[0] for row in database.rows(using, asked)]


# Renamed models


def follow_renames(*, using: str) -> bool:
    """Move the spaces, jobs and failures of specs whose models were renamed to the new names.

    The migration only renames the tables. A spec whose tables are not as declared is left to the
    next call. Returns False if it has to be tried again: a job is locked, another process is doing
    the same, or it took too long.
    """
    if not Space.objects.using(using).exists():
        return True  # nothing has been embedded in this database yet
    try:
        with database.giving_way(using):
            if database.rows(using, TRY_LOCK) != [(True,)]:
                return False
            for old, new in sorted(_adopt(using=using)):
                if specs.get(old):
                    jobs.share(old, new, using=using)
                else:
                    jobs.rename(old, new, using=using)
                    stored.rename(old, new, using=using)
                    cursors = ScanCursor.objects.using(using)
                    cursors.filter(spec=new).delete()
                    cursors.filter(spec=old).update(spec=new)
                events.tell(events.SPEC_RENAMED, spec=new, former=old)
    except database.Busy:
        return False
    except DatabaseError as error:
        if not faults.may_pass(error):
            raise
        return False  # a statement timed out
    return True


def _adopt(*, using: str) -> set[tuple[str, str]]:
    """Assign spaces to the specs whose tables hold their rows. Return (old, new) keys of specs.

    A worker may also have opened a space under the new name, which stays empty and is deleted.
    """
    moved: dict[Space, str] = {}
    for spec in specs.on(using):
        with suppress(ProgrammingError), transaction.atomic(using=using):
            moved |= dict.fromkeys(adoptable(spec, using=using), spec.key)
    every = Space.objects.using(using)
    every.filter(spec__in=moved.values()).exclude(pk__in=[one.pk for one in moved]).delete()
    # First change to a key that no spec has: two specs may have swapped names, and only one space
    # per spec may be active.
    for space in moved:
        every.filter(pk=space.pk).update(spec=f"pgembed:{space.pk}")
    for space, key in moved.items():
        every.filter(pk=space.pk).update(spec=key)
    return {(space.spec, key) for space, key in moved.items()}


# Renamed columns


def repair_triggers(*, using: str) -> None:
    """Reinstall the triggers that read other columns than those they name.

    A migration that gives a column the former name of another one does not change the triggers'
    definitions, so it does not install them again. Failures are logged here, and at the start of
    each worker.
    """
    keys = {spec.key for spec in specs.on(using)}
    for key, found in installed.rebound(keys, using=using).items():
        if _are_renewed(found, using=using):
            events.tell(events.TRIGGERS_RENEWED, spec=key)
        else:
            events.tell(events.TRIGGERS_AMISS, spec=key, states="outdated", database=using)


def _are_renewed(found: list[installed.Installed], *, using: str) -> bool:
    # Writers queue up behind a waiting table lock, so there are many short tries.
    until = time.monotonic() + TRY_SECONDS
    while True:
        try:
            with database.giving_way(using):
                for one in found:
                    one.renew(using=using)
        except database.Busy:
            if time.monotonic() > until:
                return False
            time.sleep(LOOK_SECONDS)
        except DatabaseError:
            return False  # a column is not there yet, or another role owns the table
        else:
            return True


# Removed specs


def left_of_undeclared(*, using: str) -> Mapping[str, Mapping[str, int]]:
    """Count the rows of specs that are no longer declared, by spec key and kind of row.

    Reads each of our tables once.
    """
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for what, model in LEFT.items():
        counts = model._base_manager.using(using).values("spec").annotate(rows=Count("pk"))
        for one in counts.order_by():
            found[one["spec"]][what] = one["rows"]
    paused = Pause.objects.using(using).filter(what=Pause.What.SPEC).values_list("name")
    for [key] in paused:
        found[key]["pauses"] = 1
    declared = {spec.key for spec in specs.all()}
    return {key: found[key] for key in sorted(found) if key not in declared}


def forget(spec: str, *, using: str) -> None:
    """Delete a spec's rows in our tables. Its vectors are deleted with the generated table."""
    jobs.forget(spec, using=using)
    stored.unstage_all(spec, using=using)
    rollups.forget(spec, using=using)
    for model in (ScanCursor, Space):
        model._base_manager.using(using).filter(spec=spec).delete()
