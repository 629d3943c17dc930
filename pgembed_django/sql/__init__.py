"""The SQL functions that the triggers call, versioned.

A trigger's body is copied into the users' migrations, so it only calls; what it
calls ships with ours. A version is never changed once released: a new one is added.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import pgtrigger.features
from psycopg import sql

# Name -> argument types, which Postgres needs to drop a function.
FUNCTIONS = {
    "pgembed_enqueue_v1": "text, text, integer",
    "pgembed_forget_v1": "text, text, integer, text",
    "pgembed_forget_all_v1": "text, text",
}


def qualified(function: str) -> str:
    """Return how a trigger names ``function``: in pgtrigger's schema, whatever the search_path.

    With ``PGTRIGGER_SCHEMA = None`` (a schema per tenant) it is left to the search_path.
    """
    schema = _functions_schema()
    return f'"{schema}".{function}' if schema else function


def install(apps: Any, schema_editor: Any) -> None:
    """Create the functions. Called by our migration."""
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_schema()")
        [tables] = cursor.fetchone()
    for name in FUNCTIONS:
        file = resources.files(__name__).joinpath(f"{name.removeprefix('pgembed_')}.sql")
        statement = sql.SQL(file.read_text()).format(
            functions=sql.Identifier(_functions_schema() or tables),
            tables=sql.Identifier(tables),
        )
        schema_editor.execute(statement.as_string(connection.connection), params=None)


def uninstall(apps: Any, schema_editor: Any) -> None:
    """Drop the functions."""
    for name, arguments in FUNCTIONS.items():
        statement = f"DROP FUNCTION IF EXISTS {qualified(name)}({arguments})"
        schema_editor.execute(statement, params=None)


def _functions_schema() -> str | None:
    schema: str | None = pgtrigger.features.schema()  # type: ignore[no-untyped-call]
    return schema
