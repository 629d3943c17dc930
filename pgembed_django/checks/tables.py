"""Check the tables of a database: ours, and those of the embeddable models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004
from django.db import ProgrammingError, transaction

from pgembed_django import database, postgres, specs, sql
from pgembed_django.spaces import sequences

IS_UNLOGGED = """
    SELECT FROM pg_class
    WHERE oid = to_regclass('pgembed_job')
      AND relpersistence = 'u'
"""
IS_PARTITIONED = """
    SELECT name
    FROM unnest(%(names)s::text[]) AS wanted(name)
    JOIN pg_class ON pg_class.oid = to_regclass(name)
    WHERE relkind = 'p'
       OR relispartition
"""
OTHER_KEYS = """
    SELECT
        wanted.vectors,
        format_type(source.atttypid, source.atttypmod),
        format_type(key.atttypid, key.atttypmod)
    FROM unnest(%(vectors)s::text[], %(rows)s::text[], %(keys)s::text[])
        AS wanted(vectors, rows, key)
    JOIN pg_attribute AS source
      ON source.attrelid = to_regclass(wanted.vectors)
     AND source.attname = 'source_id'
    JOIN pg_attribute AS key
      ON key.attrelid = to_regclass(wanted.rows)
     AND key.attname = wanted.key
    WHERE key.atttypid <> source.atttypid
"""
# The triggers' functions look for an unqualified table only in the schema of pgembed_job.
ELSEWHERE = """
    SELECT
        wanted.name,
        vectors.relnamespace::regnamespace::text,
        jobs.relnamespace::regnamespace::text
    FROM unnest(%(names)s::text[]) AS wanted(name)
    JOIN pg_class AS vectors ON vectors.oid = to_regclass(wanted.name)
    JOIN pg_class AS jobs ON jobs.oid = to_regclass('pgembed_job')
    WHERE strpos(wanted.name, '.') = 0
      AND vectors.relnamespace <> jobs.relnamespace
"""
# The triggers' functions delete only from tables whose owner may write pgembed_space. Otherwise
# anybody could have a table's triggers run with the rights of the functions.
OF_STRANGERS = """
    SELECT wanted.name, vectors.relowner::regrole::text
    FROM unnest(%(names)s::text[]) AS wanted(name)
    JOIN pg_class AS vectors ON vectors.oid = to_regclass(wanted.name)
    WHERE NOT has_table_privilege(vectors.relowner, 'pgembed_space', 'INSERT')
"""
RETYPE = "TRUNCATE {table}; ALTER TABLE {table} ALTER COLUMN source_id TYPE {key} USING NULL"


def check_tables(connection: Any) -> Iterator[CheckMessage]:
    """Yield the faults of the tables in a database."""
    yield from _job_table(connection)
    yield from _missing_tables(connection)
    yield from _elsewhere(connection)
    yield from _of_strangers(connection)
    yield from _partitioned(connection)
    yield from _keys(connection)
    yield from _numbers(connection)


def _job_table(connection: Any) -> Iterator[CheckMessage]:
    if _asked(connection, IS_UNLOGGED):
        yield Warning(
            "The table pgembed_job is unlogged: a crash of the server empties it, and what was "
            "written shortly before is embedded only when the reconciler comes by.",
            hint="Run ALTER TABLE pgembed_job SET LOGGED.",
            id="pgembed.W001",
        )


def _missing_tables(connection: Any) -> Iterator[CheckMessage]:
    if _asked(connection, "SELECT to_regclass('pgembed_job')") != [(None,)]:
        return
    names = {postgres.quoted_table(spec.model): spec for spec in specs.written_to(connection.alias)}
    if found := _asked(connection, specs.HAS_TABLE, names=list(names)):
        models = sorted(names[name].model._meta.label for [name] in found)
        yield Warning(
            f"The database {connection.alias!r} has {', '.join(models)}, but not the tables of "
            "pgembed_django: nothing is embedded there.",
            hint=f"manage.py migrate --database {connection.alias} creates them, unless a router "
            "keeps the app pgembed out.",
            id="pgembed.W003",
        )


def _elsewhere(connection: Any) -> Iterator[CheckMessage]:
    if not sql.is_in_one_schema():
        return  # with a schema per tenant, some vectors are in the shared one
    by_table = {
        postgres.quoted_table(one.embedding_model): one
        for one in specs.written_to(connection.alias)
    }
    for table, schema, ours in _asked(connection, ELSEWHERE, names=list(by_table)):
        spec = by_table[table]
        yield Warning(
            f"{spec}: the vectors of {spec.model.__name__} are in schema {schema}, and pgembed_job "
            f"is in {ours}. The triggers' functions look there only, so what is deleted stays "
            "searchable until a worker comes by.",
            hint="The search_path has changed between two migrations. Run "
            f"ALTER TABLE {schema}.{table} SET SCHEMA {ours}",
            id="pgembed.W007",
        )


def _of_strangers(connection: Any) -> Iterator[CheckMessage]:
    by_table = {
        postgres.quoted_table(one.embedding_model): one
        for one in specs.written_to(connection.alias)
    }
    for table, owner in _asked(connection, OF_STRANGERS, names=list(by_table)):
        spec = by_table[table]
        yield Warning(
            f"{spec}: the vectors of {spec.model.__name__} belong to the role {owner}, who may not "
            "write pgembed_space. The triggers' functions trust no such table, so what is deleted "
            "stays searchable until a worker comes by.",
            hint="Give them to the role that migrates: "
            f"ALTER TABLE {table} OWNER TO …, or trust their owner: "
            f"GRANT INSERT ON pgembed_space TO {owner}",
            id="pgembed.W010",
        )


def _partitioned(connection: Any) -> Iterator[CheckMessage]:
    names = {
        postgres.quoted_table(spec.model): spec
        for spec in specs.written_to(connection.alias)
        if spec.trigger_level == "statement"
    }
    for [name] in _asked(connection, IS_PARTITIONED, names=list(names)):
        yield Error(
            f"The table {name} of {names[name]} is partitioned, and a trigger for each statement "
            "misses rows that are written straight into a partition.",
            hint='Take trigger_level="statement" off its @embeddable, and run makemigrations.',
            id="pgembed.E017",
        )


def _keys(connection: Any) -> Iterator[CheckMessage]:
    written = specs.written_to(connection.alias)
    by_table = {postgres.quoted_table(spec.embedding_model): spec for spec in written}
    found = _asked(
        connection,
        OTHER_KEYS,
        vectors=list(by_table),
        rows=[postgres.quoted_table(spec.model) for spec in written],
        keys=[spec.model._meta.pk.column for spec in written],
    )
    for table, stored, key in found:
        spec = by_table[table]
        # A warning, as an error would block the migration that fixes it.
        yield Warning(
            f"{spec}: the key of {spec.model.__name__} is {key}, and that of its vectors {stored}. "
            "Nothing of it can be embedded or searched.",
            hint="Another field has become the primary key, which alters no foreign key. Let a "
            f"migration run: {RETYPE.format(table=table, key=key)}. The rows are embedded again.",
            id="pgembed.W005",
        )


def _numbers(connection: Any) -> Iterator[CheckMessage]:
    try:
        with transaction.atomic(using=connection.alias):
            found = sequences.behind(using=connection.alias)
    except ProgrammingError:
        return  # this role may not read some table
    if found:
        yield Warning(
            f"In the database {connection.alias!r} {', '.join(found)} would give a number that is "
            "taken: writes to embeddable models, or embedding them, fails.",
            hint="Rows have come without their sequences, by logical replication or in a restore. "
            "Run manage.py migrate: it lets them go on behind the highest.",
            id="pgembed.W008",
        )


def _asked(connection: Any, statement: str, **parameters: Any) -> list[database.Row]:
    try:
        with transaction.atomic(using=connection.alias):
            return database.rows(connection.alias, statement, **parameters)
    except ProgrammingError:
        return []  # this role has no access to a schema
