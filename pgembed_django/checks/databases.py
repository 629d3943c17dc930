"""Check the databases with our tables: before ``migrate``, and with ``check --database``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004
from django.db import (
    DataError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connections,
    router,
    transaction,
)
from django.db.backends.postgresql import psycopg_any
from django.db.migrations.executor import MigrationExecutor

from pgembed_django import conf
from pgembed_django.checks.capture import check_capture
from pgembed_django.core import database, postgres
from pgembed_django.declaration import specs
from pgembed_django.exceptions import did_you_mean
from pgembed_django.models import Job, Task
from pgembed_django.spaces import repairs
from pgembed_django.tasks.backend import queues
from pgembed_django.triggers import conditions, installed, sql

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
IS_UNLOGGED = """
    SELECT FROM pg_class
    WHERE oid = to_regclass('pgembed_job')
      AND relpersistence = 'u'
"""
TABLES = """
    SELECT
        wanted.spec,
        wanted.vectors,
        source.relkind = 'p' OR source.relispartition,
        jobs.relnamespace::regnamespace::text,
        -- The triggers' functions look for an unqualified table only in the schema of pgembed_job.
        CASE
            WHEN strpos(wanted.vectors, '.') = 0 AND vectors.relnamespace <> jobs.relnamespace
            THEN vectors.relnamespace::regnamespace::text
        END,
        -- They delete only from tables whose owner may write pgembed_space. Otherwise anybody could
        -- have a table's triggers run with the rights of the functions.
        CASE
            WHEN NOT has_table_privilege(vectors.relowner, to_regclass('pgembed_space'), 'INSERT')
            THEN vectors.relowner::regrole::text
        END,
        format_type(key.atttypid, key.atttypmod),
        format_type(stored.atttypid, stored.atttypmod)
    FROM unnest(%(specs)s::text[], %(sources)s::text[], %(keys)s::text[], %(vectors)s::text[])
        AS wanted(spec, source, key, vectors)
    JOIN pg_class AS source ON source.oid = to_regclass(wanted.source)
    LEFT JOIN pg_class AS jobs ON jobs.oid = to_regclass('pgembed_job')
    LEFT JOIN pg_class AS vectors ON vectors.oid = to_regclass(wanted.vectors)
    LEFT JOIN pg_attribute AS key
      ON key.attrelid = source.oid
     AND key.attname = wanted.key
    LEFT JOIN pg_attribute AS stored
      ON stored.attrelid = vectors.oid
     AND stored.attname = 'source_id'
     AND stored.atttypid <> key.atttypid
"""
RETYPE = "TRUNCATE {table}; ALTER TABLE {table} ALTER COLUMN source_id TYPE {key} USING NULL"

WRITES_FAIL_WITH = (
    psycopg.DataError,
    psycopg.NotSupportedError,
    psycopg.errors.IndeterminateCollation,
)
"""What a condition may fail a write with. All else is yet to be created by the migration."""


def check_databases(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Return the faults of the named databases that have our tables, or are to have them."""
    return [
        message
        for alias in databases or ()
        if connections[alias].vendor == "postgresql"
        and (router.allow_migrate_model(alias, Job) or _has_our_tables(alias))
        for message in _database(alias)
    ]


def _has_our_tables(alias: str) -> bool:
    """Return whether they are there. Routers may know another alias of the same database only."""
    try:
        return database.rows(alias, "SELECT to_regclass('pgembed_job')") != [(None,)]
    except OperationalError:
        return False


def _database(alias: str) -> Iterator[CheckMessage]:
    checks = (
        _server,
        _extension,
        _conditions,
        _job_table,
        _tables,
        _sequences,
        _functions,
        _triggers,
        _text_search,
        _tasks,
        _capture,
    )
    for check in checks:
        try:
            with transaction.atomic(using=alias):
                yield from list(check(alias))
        except ProgrammingError:
            continue  # this role may not read a table or a schema
        except OperationalError as error:
            yield Error(
                f"The database {alias!r} cannot be reached: {error}".strip(),
                hint="Start its server, or correct DATABASES in the settings.",
                id="pgembed.E010",
            )
            return


def _server(alias: str) -> Iterator[CheckMessage]:
    if not psycopg_any.is_psycopg3:
        yield Error(
            "Django talks to PostgreSQL through psycopg 2.",
            hint='Install psycopg 3: pip install "psycopg[binary]".',
            id="pgembed.E011",
        )
    connection: Any = connections[alias]
    version = connection.pg_version // 10000
    if version < OLDEST_POSTGRES:
        yield Error(
            f"The server of database {alias!r} is PostgreSQL {version}.",
            hint=f"Upgrade it to PostgreSQL {OLDEST_POSTGRES} or later.",
            id="pgembed.E012",
        )
    encoding = postgres.encoding(alias)
    if encoding != "UTF8":
        # A warning: an error would keep migrations from running, and Django accepts the encoding.
        yield Warning(
            f"The database {alias!r} is encoded in {encoding}. Texts with a character that it "
            "does not have cannot be embedded, nor words with one be searched for.",
            hint="Restore a dump into one made with TEMPLATE template0 ENCODING 'UTF8'.",
            id="pgembed.W009",
        )


def _extension(alias: str) -> Iterator[CheckMessage]:
    found = database.rows(alias, EXTENSION)
    if not found:
        yield Error(
            f"The extension vector is not available on the server of database {alias!r}.",
            hint="Install pgvector on the server, then run CREATE EXTENSION vector.",
            id="pgembed.E013",
        )
        return
    [[installed, is_migrated, may_create]] = found
    # If the role may create it, our first migration does.
    if installed is None and (is_migrated or not may_create):
        yield Error(
            f"The extension vector is missing in database {alias!r}.",
            hint="Run CREATE EXTENSION vector there as a superuser, or as the role for "
            "extensions that your host offers.",
            id="pgembed.E013",
        )
    for [schema] in database.rows(alias, UNSEEN_IN):
        yield Error(
            f"The extension vector of database {alias!r} is in the schema {schema}, which is not "
            "in the search_path.",
            hint="Have it added, for each role that uses the database: "
            f"ALTER ROLE ... SET search_path = public, {schema}.",
            id="pgembed.E013",
        )
    if installed and tuple(map(int, installed.split(".")[:2])) < OLDEST_VECTOR:
        oldest = ".".join(map(str, OLDEST_VECTOR))
        yield Error(
            f"The extension vector in database {alias!r} is version {installed}.",
            hint=f"Install pgvector {oldest} or later on the server, then run "
            "ALTER EXTENSION vector UPDATE.",
            id="pgembed.E014",
        )


def _conditions(alias: str) -> Iterator[CheckMessage]:
    """Yield an error for each comparison that fails whatever row is written, and its write."""
    for spec in _writable(alias).values():
        what = "each read of its rows" if spec.capture == "wal" else "each write"
        for trial in conditions.trials(spec.tested, model=spec.model):
            try:
                with transaction.atomic(using=alias):
                    database.rows(alias, trial)
            except (DataError, NotSupportedError, ProgrammingError) as error:
                if not isinstance(error.__cause__, WRITES_FAIL_WITH):
                    continue
                yield Error(
                    f"{spec}: its condition fails, and {what} would fail with it: {error}",
                    hint="Correct it, then run makemigrations and migrate.",
                    id="pgembed.E022",
                )


def _job_table(alias: str) -> Iterator[CheckMessage]:
    if database.rows(alias, IS_UNLOGGED):
        yield Warning(
            "The table pgembed_job is unlogged: a crash of the server empties it, and the "
            "reconciler has to find what was written shortly before.",
            hint="Run ALTER TABLE pgembed_job SET LOGGED.",
            id="pgembed.W001",
        )


def _tables(alias: str) -> Iterator[CheckMessage]:
    written = {spec.key: spec for spec in specs.written_to(alias)}
    found = database.rows(
        alias,
        TABLES,
        specs=list(written),
        sources=[postgres.quoted_table(spec.model) for spec in written.values()],
        keys=[spec.model._meta.pk.column for spec in written.values()],
        vectors=[postgres.quoted_table(spec.embedding_model) for spec in written.values()],
    )
    without_ours = set()
    for key, table, is_partitioned, ours, elsewhere, stranger, key_type, stored_type in found:
        spec, model = written[key], written[key].model
        if ours is None:
            without_ours.add(model._meta.label)
        if is_partitioned and spec.trigger_level == "statement":
            yield Error(
                f"The table {model._meta.db_table} of {spec} is partitioned, and a trigger for "
                "each statement misses rows that are written straight into a partition.",
                hint='Take trigger_level="statement" off its @embeddable, and run makemigrations.',
                id="pgembed.E017",
            )
        # With a schema per tenant, some vectors are in the shared one.
        if elsewhere and sql.is_in_one_schema():
            yield Warning(
                f"{spec}: the vectors of {model.__name__} are in schema {elsewhere}, and "
                f"pgembed_job is in {ours}. The triggers' functions look there only, so deleted "
                "rows stay searchable until a worker deletes their vectors.",
                hint="The search_path has changed between two migrations. Run "
                f"ALTER TABLE {elsewhere}.{table} SET SCHEMA {ours}",
                id="pgembed.W007",
            )
        if stranger:
            yield Warning(
                f"{spec}: the vectors of {model.__name__} belong to the role {stranger}, who may "
                "not write pgembed_space. The triggers' functions trust no such table, so deleted "
                "rows stay searchable until a worker deletes their vectors.",
                hint="Give them to the role that migrates: "
                f"ALTER TABLE {table} OWNER TO …, or trust their owner: "
                f"GRANT INSERT ON pgembed_space TO {stranger}",
                id="pgembed.W010",
            )
        if stored_type:
            # A warning, as an error would block the migration that fixes it.
            yield Warning(
                f"{spec}: the key of {model.__name__} is {key_type}, and that of its vectors "
                f"{stored_type}. None of its rows can be embedded or searched.",
                hint="Another field has become the primary key, which alters no foreign key. Let a "
                f"migration run: {RETYPE.format(table=table, key=key_type)}. The rows are embedded "
                "again.",
                id="pgembed.W005",
            )
    if without_ours:
        yield Warning(
            f"The database {alias!r} has {', '.join(sorted(without_ours))}, but not the tables of "
            "pgembed_django: nothing is embedded there.",
            hint=f"manage.py migrate --database {alias} creates them, unless a router keeps the "
            "app pgembed out.",
            id="pgembed.W003",
        )


def _tasks(alias: str) -> Iterator[CheckMessage]:
    is_missing = database.rows(alias, "SELECT to_regclass('pgembed_task')") == [(None,)]
    if is_missing and router.db_for_write(Task) == alias and queues():
        yield Warning(
            f"Tasks are kept in the database {alias!r}, which does not have the tables for them.",
            hint=f"manage.py migrate pgembed --database {alias} creates them.",
            id="pgembed.W017",
        )


def _capture(alias: str) -> Iterator[CheckMessage]:
    if database.rows(alias, "SELECT to_regclass('pgembed_replicationslot')") != [(None,)]:
        return check_capture(alias, may_be_migrated=_has_migrations_to_run)
    return iter(())


def _sequences(alias: str) -> Iterator[CheckMessage]:
    if found := repairs.sequences_behind(using=alias):
        yield Warning(
            f"In the database {alias!r} {', '.join(found)} would give a number that is taken: "
            "writes to embeddable models, or embedding them, fails.",
            hint="Rows were inserted without their sequences, by logical replication or in a "
            "restore. Run manage.py migrate: it sets them behind the highest number.",
            id="pgembed.W008",
        )


def _functions(alias: str) -> Iterator[CheckMessage]:
    if database.rows(alias, "SELECT to_regclass('pgembed_job')") == [(None,)]:
        return
    for name, schema in sql.misplaced(alias).items():
        yield Error(
            f"The function {name} in database {alias!r} writes to the tables in schema {schema!r}.",
            hint="It was left behind when the schema was copied or renamed. Install the functions "
            "and triggers again: see 'A schema per tenant' in the documentation.",
            id="pgembed.E016",
        )


def _triggers(alias: str) -> Iterator[CheckMessage]:
    """Yield a warning for each spec whose triggers are not as declared.

    Yields nothing while migrations have yet to run: they may install the triggers.
    """
    written = _writable(alias)
    found = installed.drifted(written, using=alias)
    if not found or _has_migrations_to_run(alias):
        return
    for key, states in found.items():
        told = " and ".join(
            f"{count} trigger{'s are' if count > 1 else ' is'} {state}"
            for state, count in states.items()
        )
        # A warning, as an error would block the migration that fixes it.
        yield Warning(
            f"{key}: {told}. What is written to {written[key].model._meta.label} may not be "
            "embedded until the reconciler finds it.",
            hint=_remedy(states),
            id="pgembed.W006",
        )


def _remedy(states: Mapping[str, int]) -> str:
    remedies = []
    if states.keys() & {"missing", "outdated"}:
        remedies.append(
            "Run manage.py makemigrations and migrate. If that does not help (a model was moved "
            "to another app, say, or a column took another's name while its table was locked): "
            "manage.py pgtrigger install, then pgtrigger prune."
        )
    if "disabled" in states:
        remedies.append("Run manage.py pgtrigger enable.")
    remedies.append("manage.py embed_reconcile --deep finds what was written meanwhile.")
    return " ".join(remedies)


def _writable(alias: str) -> dict[str, specs.Spec]:
    """Return the specs whose condition is valid SQL. check_declarations reports the others."""
    found = {}
    for spec in specs.written_to(alias):
        with suppress(*conditions.UNWRITABLE):
            conditions.compiled(spec.tested, model=spec.model, row="new")
            found[spec.key] = spec
    return found


def _has_migrations_to_run(alias: str) -> bool:
    executor = MigrationExecutor(connections[alias])
    return bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def _text_search(alias: str) -> Iterator[CheckMessage]:
    named = {"PGEMBED_TEXT_SEARCH_CONFIG": conf.current().text_search_config}
    for spec in specs.written_to(alias):
        if spec.language and not spec.language_column:
            named[f"{spec}: language"] = spec.configuration
    for what, name in named.items():
        # A migration that has yet to run may create it.
        if (known := postgres.languages_instead(alias, name)) and not _has_migrations_to_run(alias):
            yield Error(
                f"{what} is {name!r}, which the database does not have.",
                hint=f"{did_you_mean(name, known)}It has: {', '.join(known)}.",
                id="pgembed.E015",
            )
