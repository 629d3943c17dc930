"""Set the sequences of our tables past the highest ids in use.

Rows that come with their ids do not advance the sequence. Logical replication, which does not copy
sequences, and a restore of single tables bring such rows. The next row would then get an id that
is taken. As triggers add jobs in the writer's transaction, the application's own write would
fail.
"""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db import connections
from django.db.models import AutoField, Model
from psycopg import sql

from pgembed_django import database, events, postgres, specs
from pgembed_django.models import Space

READABLE = """
    SELECT name
    FROM unnest(%(names)s::text[]) AS wanted(name)
    WHERE has_table_privilege(to_regclass(name)::oid, 'SELECT')
      -- A worker's read would raise here. It sets such a spec aside later.
      AND NOT row_security_active(to_regclass(name)::oid)
    ORDER BY name
"""
# The ids of spaces do not come from a sequence: see spaces.opening.
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
CATCH_UP = """
    SELECT
        relation,
        setval(sequence, GREATEST(highest, pg_sequence_last_value(sequence)))
    FROM behind
    WHERE has_sequence_privilege(sequence, 'UPDATE')
    ORDER BY relation
"""


def behind(*, using: str) -> list[str]:
    """Return our tables whose sequence is behind: the next row would get an id that is taken."""
    return _asked(BEHIND, using=using)


def catch_up(*, using: str) -> None:
    """Advance the sequences that are behind, except those that this role may not alter."""
    if tables := _asked(CATCH_UP, using=using):
        events.tell(events.NUMBERS_CAUGHT_UP, tables=", ".join(tables))


def after_migrate(sender: object, *, using: str, **_: Any) -> None:
    """Receive ``post_migrate``: the role that migrates may alter the sequences."""
    if connections[using].vendor == "postgresql":
        catch_up(using=using)


def _asked(statement: str, *, using: str) -> list[str]:
    known = [postgres.quoted_table(model) for model in _models(using)]
    here = [name for [name] in database.rows(using, READABLE, names=known)]
    if not here:
        return []
    tables = [
        sql.SQL(TABLE).format(relation=sql.Literal(name), table=sql.SQL(name)) for name in here
    ]
    numbered = sql.SQL(NUMBERED).format(tables=sql.SQL(" UNION ALL ").join(tables))
    # As a str, because execute wrappers and query caches of other packages read it.
    asked = (numbered + sql.SQL(statement)).as_string(None)
    return [row[0] for row in database.rows(using, asked)]


def _models(using: str) -> list[type[Model]]:
    ours = [*apps.get_app_config("pgembed").get_models()]
    vectors = [spec.embedding_model for spec in specs.on(using)]
    return [
        model
        for model in (*ours, *vectors)
        if isinstance(model._meta.pk, AutoField) and model is not Space
    ]
