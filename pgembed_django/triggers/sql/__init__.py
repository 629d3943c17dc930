"""The SQL functions that the triggers call, versioned.

They run with the rights of the role that migrated. So they name the schema of our tables, and their
search_path is ``pg_catalog`` alone: in any other schema, a role may have defined an operator or a
function for exactly the types of a call, which Postgres would prefer to a built-in one.

A trigger's body is copied into the users' migrations, so it only calls a function that our own
migrations create. A released version of a function is never changed: a new version is added.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import pgtrigger.features
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, migrations
from psycopg import sql

# The schema of the job table that each function's body names, and the one that is found.
WRITES_TO = r"""
    SELECT
        name,
        (
            SELECT (parse_ident(
                substring(prosrc FROM '("(?:[^"]|"")+")\.pgembed_(?:job|ripple|task)')
            ))[1]
            FROM pg_proc
            WHERE pg_proc.oid = to_regprocedure(name)::oid
        ),
        (
            SELECT nspname
            FROM pg_class
            JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE pg_class.oid = to_regclass('pgembed_job')::oid
        )
    FROM pg_catalog.unnest(%(names)s::text[]) AS wanted(name)
"""

SCHEMA_OF_TASKS = """
    SELECT nspname
    FROM pg_class
    JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE pg_class.oid = to_regclass('pgembed_task')::oid
"""

# Name -> argument types, which Postgres needs to drop a function.
FUNCTIONS = {
    "pgembed_enqueue_v1": "text, text, integer",
    "pgembed_enqueue_all_v1": "text, text[], integer",
    "pgembed_forget_v1": "text, text, integer, text",
    "pgembed_forget_units_v1": "text, text[], integer, text",
    "pgembed_forget_all_v1": "text, text",
    "pgembed_ripple_v1": "text, text, text[]",
    "pgembed_enqueue_task_v1": (
        "text, jsonb, text, text, integer, timestamptz, text, interval, text, text, interval, "
        "text, bigint, boolean"
    ),
    "pgembed_end_batch_v1": "bigint",
    "pgembed_enqueue_batch_v1": "jsonb, jsonb",
    "pgembed_task_ended_v1": "",
    "pgembed_tasks_truncated_v1": "",
    "pgembed_enqueue_tasks_v1": (
        "text, jsonb, text, integer, timestamptz, interval, text, interval, bigint"
    ),
    "pgembed_record_partitions_v1": "",
    "pgembed_emit_v1": "text, text, integer, text, text[]",
}

PARTS = (
    "enqueue_end_v1",
    "nudge_v1",
    "embedding_table_v1",
    "forget_end_v1",
    "forget_key_type_v1",
    "forget_is_a_key_v1",
    "forget_equals_v1",
    "plain_call_v1",
    "task_problem_v1",
)
"""SQL that several functions have in common. Like them, it is never changed once released."""


class OnPostgres(migrations.RunSQL):
    """Statements of a migration that run on PostgreSQL only.

    Without a router, databases of other kinds get our tables too. The tables stay empty there, but
    the migrations must succeed, as the tests of a project with such a database run them.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        if _is_postgres(schema_editor):
            super().database_forwards(app_label, schema_editor, *states)

    def database_backwards(self, app_label: str, schema_editor: Any, *states: Any) -> None:
        if _is_postgres(schema_editor):
            super().database_backwards(app_label, schema_editor, *states)


def qualified(function: str) -> str:
    """Return the name by which a trigger calls ``function``, qualified with pgtrigger's schema.

    With ``PGTRIGGER_SCHEMA = None`` (a schema per tenant) it is unqualified, and found by the
    search_path.
    """
    schema = _functions_schema()
    return f'"{schema}".{function}' if schema else function


def is_in_one_schema() -> bool:
    """Return whether the functions are in a single schema, instead of one per tenant."""
    return _functions_schema() is not None


def text(name: str) -> str:
    """Return the SQL in the file of this name in this folder."""
    return resources.files(__name__).joinpath(f"{name}.sql").read_text()


def install(apps: Any, schema_editor: Any, *, tables: str | None = None) -> None:
    """Create the functions. Called by our migration.

    ``tables``: the schema of our tables, if they exist. None: they are being created in the first
    schema of the ``search_path``.

    Raises:
        ImproperlyConfigured: the functions exist, and write to the tables of another schema.
    """
    if not _is_postgres(schema_editor):
        return
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        if tables is None:
            cursor.execute("SELECT current_schema()")
            [tables] = cursor.fetchone()
        _refuse_others(cursor, tables)
    names = _names(connection, tables)
    parts = {name: sql.SQL(text(name).strip()).format(**names) for name in PARTS}
    for name in FUNCTIONS:
        statement = sql.SQL(text(name.removeprefix("pgembed_"))).format(**names, **parts)
        schema_editor.execute(statement.as_string(connection.connection), params=None)
    watch_tasks(schema_editor)


def watch_tasks(schema_editor: Any) -> None:
    """Create the triggers of the table of tasks, if it exists. They call the functions."""
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        cursor.execute(SCHEMA_OF_TASKS)
        found = cursor.fetchall()
    for (tables,) in found:
        statement = sql.SQL(text("task_triggers_v1")).format(**_names(connection, tables))
        schema_editor.execute(statement.as_string(connection.connection), params=None)


def _names(connection: Any, tables: str) -> dict[str, sql.Composable]:
    schema = sql.Identifier(tables).as_string(connection.connection)
    return {
        "functions": sql.Identifier(_functions_schema() or tables),
        "tables": sql.Identifier(tables),
        "schema": sql.Literal(f"{schema}."),
        "job": sql.Literal(f"{schema}.pgembed_job"),
        "task_ids": sql.Literal(f"{schema}.pgembed_task_id_seq"),
        "space": sql.Literal(f"{schema}.pgembed_space"),
    }


def uninstall(apps: Any, schema_editor: Any) -> None:
    """Drop the functions, and the triggers on the table of tasks."""
    if not _is_postgres(schema_editor):
        return
    for name, arguments in FUNCTIONS.items():
        statement = f"DROP FUNCTION IF EXISTS {qualified(name)}({arguments}) CASCADE"
        schema_editor.execute(statement, params=None)


def schema_of_tables_alone(using: str) -> str | None:
    """Return the schema of our tables, if none of the functions is in ``PGTRIGGER_SCHEMA``.

    In that case the setting has changed: triggers that are installed from now on would call missing
    functions, and each write would fail. If only some are missing, a migration will bring them.
    """
    with connections[using].cursor() as cursor:
        found = _written_schemas(cursor)
    [tables] = {tables for _, _, tables in found}
    return tables if all(schema is None for _, schema, _ in found) else None


def misplaced(using: str) -> dict[str, str]:
    """Return the functions that write to another schema than that of our tables, with that schema.

    Missing functions are left out: the next migrate creates them.
    """
    with connections[using].cursor() as cursor:
        return {
            name.partition("(")[0]: schema
            for name, schema, tables in _written_schemas(cursor)
            if schema and schema != tables
        }


def _written_schemas(cursor: Any) -> list[tuple[str, str | None, str | None]]:
    """Return (function with argument types, schema it writes to, schema of our tables) for each.

    The schema of a missing function or of missing tables is None.
    """
    names = [f"{qualified(name)}({arguments})" for name, arguments in FUNCTIONS.items()]
    cursor.execute(WRITES_TO, {"names": names})
    found: list[tuple[str, str | None, str | None]] = cursor.fetchall()
    return found


def _refuse_others(cursor: Any, tables: str) -> None:
    others = {schema for _, schema, _ in _written_schemas(cursor)} - {None, tables}
    if is_in_one_schema() and others:
        raise ImproperlyConfigured(
            f"The functions in schema {_functions_schema()!r} write to the tables in "
            f"{others.pop()!r}, and would write to those in {tables!r} from now on. With a schema "
            "per tenant set PGTRIGGER_SCHEMA = None, and run makemigrations."
        )


def _is_postgres(schema_editor: Any) -> bool:
    return str(schema_editor.connection.vendor) == "postgresql"


def _functions_schema() -> str | None:
    schema: str | None = pgtrigger.features.schema()  # type: ignore[no-untyped-call]
    return schema
