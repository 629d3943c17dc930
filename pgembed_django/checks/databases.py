"""Check the databases that hold our tables: before ``migrate``, and with ``check --database``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004
from django.db import ProgrammingError, connections, router, transaction
from django.db.backends.postgresql import psycopg_any
from django.db.utils import OperationalError

from pgembed_django import conf, database, specs, sql
from pgembed_django.checks.triggers import check_triggers
from pgembed_django.models import Job

OLDEST_POSTGRES = 15
OLDEST_VECTOR = (0, 7)

EXTENSION = """
    SELECT
        available.installed_version,
        to_regclass('pgembed_job') IS NOT NULL AS is_migrated,
        current_setting('is_superuser')::boolean
            OR (
                version.trusted
                AND has_database_privilege(current_database(), 'CREATE')
            ) AS may_create
    FROM pg_available_extensions AS available
    JOIN pg_available_extension_versions AS version
      ON version.name = available.name
     AND version.version = available.default_version
    WHERE available.name = 'vector'
"""
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
# The functions look for a table that is not qualified in the schema of the jobs, and nowhere else.
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
RETYPE = "TRUNCATE {table}; ALTER TABLE {table} ALTER COLUMN source_id TYPE {key} USING NULL"
TEXT_SEARCH_CONFIGS = """
    SELECT cfgname, cfgnamespace::regnamespace::text || '.' || cfgname
    FROM pg_ts_config
    ORDER BY cfgname
"""


def check_databases(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Return what is wrong with those of the named databases that are ours."""
    return [
        message
        for alias in databases or ()
        if connections[alias].vendor == "postgresql" and router.allow_migrate_model(alias, Job)
        for message in _database(alias)
    ]


def _database(alias: str) -> Iterator[CheckMessage]:
    connection: Any = connections[alias]
    if not psycopg_any.is_psycopg3:
        yield Error(
            "Django talks to PostgreSQL through psycopg 2.",
            hint='Install psycopg 3: pip install "psycopg[binary]".',
            id="pgembed.E011",
        )
    try:
        with connection.cursor() as cursor:
            yield from _server(connection)
            yield from _extension(connection, cursor)
            yield from _job_table(cursor)
            yield from _missing_tables(connection)
            yield from _functions(connection)
            yield from _elsewhere(connection)
            yield from _partitioned(connection)
            yield from _keys(connection)
            yield from check_triggers(connection)
            yield from _text_search(cursor)
    except OperationalError as error:
        yield Error(
            f"The database {alias!r} cannot be reached: {error}".strip(),
            hint="Start its server, or mend DATABASES in the settings.",
            id="pgembed.E010",
        )


def _server(connection: Any) -> Iterator[CheckMessage]:
    version = connection.pg_version // 10000
    if version < OLDEST_POSTGRES:
        yield Error(
            f"The server of database {connection.alias!r} is PostgreSQL {version}.",
            hint=f"Upgrade it to PostgreSQL {OLDEST_POSTGRES} or later.",
            id="pgembed.E012",
        )


def _extension(connection: Any, cursor: Any) -> Iterator[CheckMessage]:
    cursor.execute(EXTENSION)
    found = cursor.fetchone()
    if found is None:
        yield Error(
            f"The extension vector is not available on the server of database "
            f"{connection.alias!r}.",
            hint="Install pgvector on the server (packages are called postgresql-17-pgvector or "
            "the like), then run CREATE EXTENSION vector.",
            id="pgembed.E013",
        )
        return
    installed, is_migrated, may_create = found
    # Our first migration creates it, where the role may.
    if installed is None and (is_migrated or not may_create):
        yield Error(
            f"The extension vector is missing in database {connection.alias!r}.",
            hint="Run CREATE EXTENSION vector there, as a role that may: the database's owner "
            "or a superuser.",
            id="pgembed.E013",
        )
    if installed and tuple(map(int, installed.split(".")[:2])) < OLDEST_VECTOR:
        oldest = ".".join(map(str, OLDEST_VECTOR))
        yield Error(
            f"The extension vector in database {connection.alias!r} is version {installed}.",
            hint=f"Install pgvector {oldest} or later on the server, then run "
            "ALTER EXTENSION vector UPDATE.",
            id="pgembed.E014",
        )


def _job_table(cursor: Any) -> Iterator[CheckMessage]:
    cursor.execute(IS_UNLOGGED)
    if cursor.fetchone() is not None:
        yield Warning(
            "The table pgembed_job is unlogged: a crash of the server empties it, and what was "
            "written shortly before is embedded only when the reconciler comes by.",
            hint="Run ALTER TABLE pgembed_job SET LOGGED.",
            id="pgembed.W001",
        )


def _missing_tables(connection: Any) -> Iterator[CheckMessage]:
    if database.rows(connection.alias, "SELECT to_regclass('pgembed_job')") != [(None,)]:
        return
    quote = connection.ops.quote_name
    written = [spec for spec in specs.all() if router.db_for_write(spec.model) == connection.alias]
    names = {quote(spec.model._meta.db_table): spec for spec in written}
    try:
        with transaction.atomic(using=connection.alias):
            found = database.rows(connection.alias, specs.HAS_TABLE, names=list(names))
    except ProgrammingError:
        return  # a schema that this role may not look into
    if found:
        models = sorted(names[name].model._meta.label for [name] in found)
        yield Warning(
            f"The database {connection.alias!r} has {', '.join(models)}, but not the tables of "
            "pgembed_django: nothing is embedded there.",
            hint=f"manage.py migrate --database {connection.alias} creates them, unless a router "
            "keeps the app pgembed out.",
            id="pgembed.W003",
        )


def _functions(connection: Any) -> Iterator[CheckMessage]:
    if database.rows(connection.alias, "SELECT to_regclass('pgembed_job')") == [(None,)]:
        return
    try:
        with transaction.atomic(using=connection.alias):
            misplaced = sql.misplaced(connection.alias)
    except ProgrammingError:
        return  # a schema that this role may not look into
    for name, schema in misplaced.items():
        yield Error(
            f"The function {name} in database {connection.alias!r} writes to the tables in schema "
            f"{schema!r}.",
            hint="It was left behind when the schema was copied or renamed. Install the functions "
            "and triggers again: see 'A schema per tenant' in the documentation.",
            id="pgembed.E016",
        )


def _elsewhere(connection: Any) -> Iterator[CheckMessage]:
    if not sql.is_in_one_schema():
        return  # a schema per tenant: the shared one's vectors are not this tenant's
    quote = connection.ops.quote_name
    written = [spec for spec in specs.all() if router.db_for_write(spec.model) == connection.alias]
    by_table = {quote(spec.embedding_model._meta.db_table): spec for spec in written}
    try:
        with transaction.atomic(using=connection.alias):
            found = database.rows(connection.alias, ELSEWHERE, names=list(by_table))
    except ProgrammingError:
        return  # a schema that this role may not look into
    for table, schema, ours in found:
        spec = by_table[table]
        yield Warning(
            f"{spec}: the vectors of {spec.model.__name__} are in schema {schema}, and pgembed_job "
            f"is in {ours}. The triggers' functions look there only, so what is deleted stays "
            "searchable until a worker comes by.",
            hint="The search_path has changed between two migrations. Run "
            f"ALTER TABLE {schema}.{table} SET SCHEMA {ours}",
            id="pgembed.W007",
        )


def _partitioned(connection: Any) -> Iterator[CheckMessage]:
    names = {
        connection.ops.quote_name(spec.model._meta.db_table): spec
        for spec in specs.all()
        if spec.trigger_level == "statement" and router.db_for_write(spec.model) == connection.alias
    }
    try:
        with transaction.atomic(using=connection.alias):
            found = database.rows(connection.alias, IS_PARTITIONED, names=list(names))
    except ProgrammingError:
        return  # a schema that this role may not look into
    for [name] in found:
        yield Error(
            f"The table {name} of {names[name]} is partitioned, and a trigger for each statement "
            "misses rows that are written straight into a partition.",
            hint='Take trigger_level="statement" off its @embeddable, and run makemigrations.',
            id="pgembed.E017",
        )


def _keys(connection: Any) -> Iterator[CheckMessage]:
    quote = connection.ops.quote_name
    written = [spec for spec in specs.all() if router.db_for_write(spec.model) == connection.alias]
    by_table = {quote(spec.embedding_model._meta.db_table): spec for spec in written}
    try:
        with transaction.atomic(using=connection.alias):
            found = database.rows(
                connection.alias,
                OTHER_KEYS,
                vectors=list(by_table),
                rows=[quote(spec.model._meta.db_table) for spec in written],
                keys=[spec.model._meta.pk.column for spec in written],
            )
    except ProgrammingError:
        return  # a schema that this role may not look into
    for table, stored, key in found:
        spec = by_table[table]
        # Not an error: those keep the migration from running that mends it.
        yield Warning(
            f"{spec}: the key of {spec.model.__name__} is {key}, and that of its vectors {stored}. "
            "Nothing of it can be embedded or searched.",
            hint="Another field has become the primary key, which alters no foreign key. Let a "
            f"migration run: {RETYPE.format(table=table, key=key)}. The rows are embedded anew.",
            id="pgembed.W005",
        )


def _text_search(cursor: Any) -> Iterator[CheckMessage]:
    name = conf.current().text_search_config
    cursor.execute(TEXT_SEARCH_CONFIGS)
    known = cursor.fetchall()
    if not any(name in names for names in known):
        yield Error(
            f"PGEMBED_TEXT_SEARCH_CONFIG is {name!r}, which the database does not have.",
            hint=f"It has: {', '.join(short for short, _ in known)}.",
            id="pgembed.E015",
        )
