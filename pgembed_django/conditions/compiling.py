"""Compile a spec's ``when`` to SQL about one row, and tell what that reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from django.core.exceptions import EmptyResultSet, FieldError, FullResultSet, ValidationError
from django.db.models import GeneratedField, Model, Q
from django.db.models.lookups import In
from django.db.models.sql import Query
from django.db.models.sql.datastructures import BaseTable
from psycopg import Error, sql

from pgembed_django import postgres

Row = Literal["old", "new", "inserted"]

UNWRITABLE = (
    FieldError,
    ValidationError,
    Error,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What ``compiled`` raises if a constant cannot be written in SQL."""

# Types whose values are equal only if their texts are equal. Other types are compared as text: a
# collation may ignore case, jsonb considers 1 and 1.0 equal, and json has no equality operator.
# bytea as text is twice as long, and may not be longer than 1 GB.
SIMPLE_TYPES = frozenset(
    {
        "bigint",
        "boolean",
        "bytea",
        "date",
        "integer",
        "smallint",
        "timestamp with time zone",
        "timestamp without time zone",
        "uuid",
    }
)

TEXTUAL = re.compile("text|citext|varchar|char")

# Group 1 is a column that is read. Strings and other names match without it: they may contain
# what looks like a column.
READ = re.compile(r"""'(?:[^']|'')*'|"?\b(?:old|new)"?\.("(?:[^"]|"")*"|\w+)|"(?:[^"]|"")*\"""")


def compiled(when: Q | None, *, model: type[Model], row: Row) -> str:
    """Return SQL for whether this version of the row matches ``when``. It is never NULL."""
    if not when:
        return "TRUE"
    concrete = model._meta.concrete_model or model
    query = Query(concrete)
    # Django qualifies columns with the first alias: here "old" or "new", as in a trigger's WHEN.
    # Quote it here: not all Django versions do, and any change in the SQL makes a migration.
    alias = f'"{row}"'
    query.alias_map[alias] = BaseTable(concrete._meta.db_table, alias)
    query.alias_refcount[alias] = 1
    compiler = query.get_compiler(connection=postgres.any_postgres())
    try:
        text, params = compiler.compile(query.build_where(_in_order(when)))
    except EmptyResultSet:
        return "FALSE"
    except FullResultSet:
        return "TRUE"
    return f"({text % tuple(sql.quote(param) for param in params)}) IS TRUE"


def changed(field: Any) -> str:
    """Return SQL for whether this column's content has changed. It is never NULL."""
    column = postgres.quoted_name(field.column)
    old, new = f'"old".{column}', f'"new".{column}'
    if field.db_type(postgres.any_postgres()) in SIMPLE_TYPES:
        return f"{old} IS DISTINCT FROM {new}"
    return f'{old}::text COLLATE "C" IS DISTINCT FROM {new}::text COLLATE "C"'


def trials(when: Q | None, *, model: type[Model]) -> Iterator[str]:
    """Yield SELECTs that test each comparison on a row of NULLs and empty texts.

    One that fails would fail the writes of rows. All are tested apart, as AND and OR skip some.
    """
    columns = _columns(model)
    for child in when.children if when else ():
        if isinstance(child, Q):
            yield from trials(child, model=model)
        else:
            comparison = compiled(Q(child), model=model, row="new")
            row = ", ".join(_sample(columns[name]) for name in columns_read(comparison))
            yield f'SELECT {comparison} FROM (SELECT {row}) AS "new"'  # noqa: S608 - our own


def _sample(field: Any) -> str:
    parameters = field.db_parameters(postgres.any_postgres())
    value = "''" if TEXTUAL.match(parameters["type"]) else "NULL"
    collation = parameters.get("collation")
    collate = f" COLLATE {postgres.quoted_name(collation)}" if collation else ""
    return f"{value}::{parameters['type']}{collate} AS {postgres.quoted_name(field.column)}"


def columns_read(condition: str) -> list[str]:
    """Return the columns that a condition reads, in the order of their first use.

    The order lets a caller notice that two columns have swapped names.
    """
    read = (match[1] for match in READ.finditer(condition) if match[1])
    return list(dict.fromkeys(_unquoted(name) for name in read))


def declared(condition: str, *, model: type[Model]) -> str:
    """Return those properties of a condition's columns that a migration may change, as text.

    These are each column's name, type, collation and generated expression. Empty: no columns.
    """
    columns = _columns(model)
    return "\n".join(_declared(columns[name]) for name in columns_read(condition))


def _columns(model: type[Model]) -> dict[str, Any]:
    """Return the model's fields by the names that ``columns_read`` returns."""
    return {
        _unquoted(postgres.quoted_name(str(field.column))): field
        for field in model._meta.concrete_fields
    }


def _declared(field: Any) -> str:
    connection = postgres.any_postgres()
    parameters = field.db_parameters(connection)
    expression = ""
    if isinstance(field, GeneratedField):
        text, params = field.generated_sql(connection)
        expression = text % tuple(sql.quote(param) for param in params)
    return repr((field.column, parameters["type"], parameters.get("collation"), expression))


def _in_order(node: Any) -> Any:
    """Sort sets: their order differs between processes, and each order would make a migration."""
    if isinstance(node, Q):
        children = [_in_order(child) for child in node.children]
        return Q.create(children, connector=node.connector, negated=node.negated)
    if isinstance(node, tuple) and len(node) == 2 and isinstance(node[1], (set, frozenset)):
        return node[0], sorted(node[1], key=repr)
    if isinstance(node, In) and isinstance(node.rhs, list):
        return In(node.lhs, sorted(node.rhs, key=repr))  # Django has made the set a list
    return node


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
