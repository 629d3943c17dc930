"""The publication that workers read from the write-ahead log, and what migrations do for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.db.models import BaseConstraint
from psycopg import sql

from pgembed_django import conf
from pgembed_django.core import postgres

OURS = "pgembed"
"""The publication that migrations make and alter, unless ``PGEMBED_PUBLICATION`` names one."""

# Deletions and changed keys are told by the replica identity, whose columns must be published.
# Without it, or with FULL beside a list of columns, Postgres refuses the application's UPDATEs.
IDENTITY = """
    SELECT
        pg_catalog.string_agg(pg_catalog.quote_ident(attname), ', ' ORDER BY attnum)
            FILTER (WHERE is_of_table) AS columns,
        pg_catalog.bool_and(has_key) AS is_usable,
        pg_catalog.bool_and(is_full) AS is_full
    FROM (
        SELECT
            part.oid = source.oid AS is_of_table,
            part.relreplident = 'f' AS is_full,
            attname,
            attnum,
            EXISTS (
                SELECT
                FROM pg_catalog.pg_attribute AS key
                WHERE key.attrelid = part.oid
                  AND key.attname = {key}
                  AND key.attnum = ANY(pg_index.indkey)
            ) AS has_key
        FROM (SELECT to_regclass({table})::oid AS oid) AS source
        JOIN pg_catalog.pg_class AS part
          ON part.oid = source.oid
          OR part.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree(source.oid::regclass))
        LEFT JOIN pg_catalog.pg_index
          ON indrelid = part.oid
         AND CASE part.relreplident WHEN 'd' THEN indisprimary WHEN 'i' THEN indisreplident END
        LEFT JOIN pg_catalog.pg_attribute
          ON attrelid = indrelid
         AND attnum = ANY(indkey)
    ) AS identity
"""

MAKE = """
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = {publication}) THEN
        CREATE PUBLICATION {name} WITH (publish_via_partition_root = true);
    END IF;
"""
# The lock waits for open writers: what they have written so far would not be published.
ADD = """
    LOCK TABLE {rows} IN SHARE ROW EXCLUSIVE MODE;
    SELECT identity.columns, identity.is_usable
    INTO columns, is_usable
    FROM ({identity}) AS identity;
    IF is_usable IS NOT TRUE THEN
        RAISE EXCEPTION 'pgembed: the replica identity of % does not have its key %',
            {table}, {key}
        USING HINT = 'Its own UPDATEs would fail once it is published. Run ALTER TABLE ... '
            'REPLICA IDENTITY DEFAULT, with a primary key that has this column, or choose another '
            'capture.';
    END IF;
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_publication_rel
        JOIN pg_catalog.pg_publication ON pg_publication.oid = prpubid
        WHERE pubname = {publication}
          AND prrelid = to_regclass({table})::oid
    ) THEN
        EXECUTE 'ALTER PUBLICATION {name} ADD TABLE ' || {table} || ' (' || columns || ')';
    END IF;
"""
DO = """
    DO $pgembed$
    DECLARE
        columns text;
        is_usable boolean;
    BEGIN{body}
    EXCEPTION WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'pgembed: this role may not publish tables: %', SQLERRM
        USING HINT = 'Have the owner of the table run what manage.py embed_publication prints, and '
            'name that publication by PGEMBED_PUBLICATION.';
    END
    $pgembed$;
"""
DROP = """
    DO $pgembed$
    BEGIN
        IF EXISTS (
            SELECT FROM pg_catalog.pg_publication_rel
            JOIN pg_catalog.pg_publication ON pg_publication.oid = prpubid
            WHERE pubname = {publication}
              AND prrelid = to_regclass({table})::oid
        ) THEN
            ALTER PUBLICATION {name} DROP TABLE {rows};
        END IF;
    END
    $pgembed$;
"""


class Published(BaseConstraint):
    """Has migrations publish the source rows of a generated model, by their keys.

    It is among the model's constraints because Django's migrations see to these. Without
    ``with_table`` there only is to be a publication: triggers write messages.
    """

    def __init__(self, *, name: str, with_table: bool = True) -> None:
        super().__init__(name=name)
        self.with_table = with_table

    def create_sql(self, model: Any, schema_editor: Any) -> Any:
        """Return what makes the publication, and adds the table."""
        if schema_editor.connection.vendor != "postgresql" or conf.current().publication:
            return None
        statement = DO.replace("{body}", MAKE + (ADD if self.with_table else ""))
        return _filled(statement, model._meta.get_field("source").related_model)

    def constraint_sql(self, model: Any, schema_editor: Any) -> Any:
        """Put it off until the tables are there."""
        made = self.create_sql(model, schema_editor)
        schema_editor.deferred_sql += [made] if made else []

    def remove_sql(self, model: Any, schema_editor: Any) -> Any:
        """Return what takes the table out of the publication."""
        is_postgres = schema_editor.connection.vendor == "postgresql"
        if not is_postgres or conf.current().publication or not self.with_table:
            return None
        return _filled(DROP, model._meta.get_field("source").related_model)

    def validate(self, *given: Any, **options: Any) -> None:
        """Rows are all right."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Published):
            return NotImplemented
        return (self.name, self.with_table) == (other.name, other.with_table)

    def __hash__(self) -> int:
        return hash((self.name, self.with_table))

    def deconstruct(self) -> Any:
        """Return a stable import path, and the arguments."""
        _, args, kwargs = super().deconstruct()
        if not self.with_table:
            kwargs["with_table"] = False
        return "pgembed_django.models.Published", args, kwargs


def statements(models: Iterable[Any]) -> Iterator[str]:
    """Yield what the owner of tables runs to publish them, if migrations may not."""
    yield _named(DO.replace("{body}", MAKE))
    for model in models:
        yield _filled(DO.replace("{body}", ADD), model)


def identity_of(model: Any) -> str:
    """Return the query for a table's replica identity: its columns, ``is_usable``, ``is_full``.

    With ``REPLICA IDENTITY FULL``, which has no columns, all columns must be published.
    """
    return _filled(IDENTITY, model)


def name() -> str:
    """Return the name of the publication."""
    return conf.current().publication or OURS


def _filled(statement: str, model: Any) -> str:
    table = postgres.quoted_table(model)
    return _replaced(
        _named(statement.replace("{identity}", IDENTITY)),
        rows=table,
        table=sql.Literal(table).as_string(None),
        key=sql.Literal(str(model._meta.pk.column)).as_string(None),
    )


def _named(statement: str) -> str:
    return _replaced(
        statement,
        name=postgres.quoted_name(name()),
        publication=sql.Literal(name()).as_string(None),
    )


def _replaced(statement: str, **values: str) -> str:
    for placeholder, value in values.items():
        statement = statement.replace(f"{{{placeholder}}}", value)
    return statement
