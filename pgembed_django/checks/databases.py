"""Check the databases with our tables: before ``migrate``, and with ``check --database``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004
from django.db import ProgrammingError, connections, router, transaction
from django.db.backends.postgresql import psycopg_any
from django.db.utils import OperationalError

from pgembed_django import conf, database, postgres, sql
from pgembed_django.checks.conditions import check_conditions
from pgembed_django.checks.tables import check_tables
from pgembed_django.checks.triggers import check_triggers
from pgembed_django.models import Job

OLDEST_POSTGRES = 15
# The first version with hnsw.iterative_scan, which searches by an index set.
OLDEST_VECTOR = (0, 8)

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
UNSEEN_IN = """
    SELECT nspname
    FROM pg_extension
    JOIN pg_namespace ON pg_namespace.oid = extnamespace
    WHERE extname = 'vector'
      AND to_regtype('vector') IS NULL
"""


def check_databases(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Return the faults of the named databases that are to have our tables."""
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
            yield from _encoding(connection)
            yield from _extension(connection, cursor)
            yield from check_conditions(connection)
            yield from check_tables(connection)
            yield from _functions(connection)
            yield from check_triggers(connection)
            yield from _text_search(connection)
    except OperationalError as error:
        yield Error(
            f"The database {alias!r} cannot be reached: {error}".strip(),
            hint="Start its server, or correct DATABASES in the settings.",
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


def _encoding(connection: Any) -> Iterator[CheckMessage]:
    encoding = postgres.encoding(connection.alias)
    if encoding != "UTF8":
        # A warning: an error would keep migrations from running, and Django accepts the encoding.
        yield Warning(
            f"The database {connection.alias!r} is encoded in {encoding}. Texts with a character "
            "that it does not have cannot be embedded, nor words with one be searched for.",
            hint="Django expects UTF-8 as well. Restore a dump of it into one that was created "
            "with TEMPLATE template0 ENCODING 'UTF8'.",
            id="pgembed.W009",
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
    # If the role may create it, our first migration does.
    if installed is None and (is_migrated or not may_create):
        yield Error(
            f"The extension vector is missing in database {connection.alias!r}.",
            hint="Run CREATE EXTENSION vector there as a superuser, or as the role for "
            "extensions that your host offers.",
            id="pgembed.E013",
        )
    cursor.execute(UNSEEN_IN)
    for [schema] in cursor.fetchall():
        yield Error(
            f"The extension vector of database {connection.alias!r} is in the schema {schema}, "
            "which is not in the search_path.",
            hint="Have it added, for each role that uses the database: "
            f"ALTER ROLE ... SET search_path = public, {schema}.",
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


def _functions(connection: Any) -> Iterator[CheckMessage]:
    if database.rows(connection.alias, "SELECT to_regclass('pgembed_job')") == [(None,)]:
        return
    try:
        with transaction.atomic(using=connection.alias):
            misplaced = sql.misplaced(connection.alias)
    except ProgrammingError:
        return  # this role has no access to a schema
    for name, schema in misplaced.items():
        yield Error(
            f"The function {name} in database {connection.alias!r} writes to the tables in schema "
            f"{schema!r}.",
            hint="It was left behind when the schema was copied or renamed. Install the functions "
            "and triggers again: see 'A schema per tenant' in the documentation.",
            id="pgembed.E016",
        )


def _text_search(connection: Any) -> Iterator[CheckMessage]:
    name = conf.current().text_search_config
    if known := postgres.languages_instead(connection.alias, name):
        yield Error(
            f"PGEMBED_TEXT_SEARCH_CONFIG is {name!r}, which the database does not have.",
            hint=f"It has: {', '.join(known)}.",
            id="pgembed.E015",
        )
