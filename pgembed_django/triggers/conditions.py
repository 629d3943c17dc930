"""The condition of a spec: its ``when`` as SQL about one row, and why a trigger cannot test it.

A trigger sees only a row's own columns, and only when the row is written. So relations,
subqueries and the clock are refused, rather than compiled to SQL that looks right but is not. The
columns of parents are not: where a condition names one, workers and searches test it instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from django.core.exceptions import (
    EmptyResultSet,
    FieldDoesNotExist,
    FieldError,
    FullResultSet,
    ValidationError,
)
from django.db.models import Field, GeneratedField, Model, Q
from django.db.models.expressions import Combinable, CombinedExpression, F, NegatedExpression, Value
from django.db.models.functions import Now
from django.db.models.lookups import In, Lookup
from django.db.models.sql import Query
from django.db.models.sql.datastructures import BaseTable
from django.utils.functional import Promise
from psycopg import Error, sql

from pgembed_django.core import postgres
from pgembed_django.exceptions import did_you_mean

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


def names(when: Any) -> list[str]:
    """Return the fields that a condition names, each once. Not ``pk``, which always has triggers.

    ``refusals`` lets it name the columns of the row and of its parents.
    """
    found: dict[str, None] = {}
    todo: list[Any] = [when]
    while todo:
        one = todo.pop(0)
        if isinstance(one, Q):
            for child in one.children:
                is_lookup = isinstance(child, tuple)
                todo += [F(child[0]), child[1]] if is_lookup else [child]  # type: ignore[index]
        elif isinstance(one, F):
            found[one.name.partition("__")[0]] = None  # type: ignore[attr-defined]
        elif isinstance(one, (list, tuple, set, frozenset)):
            todo += one
        elif hasattr(one, "get_source_expressions"):
            todo += one.get_source_expressions()
    found.pop("pk", None)
    return list(found)


BITWISE = frozenset(
    {
        Combinable.BITAND,
        Combinable.BITLEFTSHIFT,
        Combinable.BITOR,
        Combinable.BITRIGHTSHIFT,
        Combinable.BITXOR,
    }
)
"""The operators that have a result whatever the operands are."""


def refusals(when: Any, *, model: type[Model]) -> Iterator[str]:
    """Yield what a trigger cannot test in ``when``, and what to do instead.

    This needs no other model to be loaded.
    """
    if isinstance(when, Q):
        for child in when.children:
            match child:
                case (str() as lookup, value):
                    yield from _path_refusals(lookup, model=model, is_lookup=True)
                    yield from _lookup_refusals(lookup.split("__")[-1], value)
                    yield from _constant_refusals(value, model=model)
                case _ if hasattr(child, "resolve_expression"):
                    yield from refusals(child, model=model)
                case _:
                    yield f"a {type(child).__name__} is no condition. Write Q(field=value)."
    elif type(when) is F:  # OuterRef and slices are subclasses
        path: str = when.name  # type: ignore[attr-defined]
        yield from _path_refusals(path, model=model, is_lookup=False)
    elif isinstance(when, CombinedExpression) and when.connector not in BITWISE:
        yield (
            f"{when.connector[0]!r} fails where the result is too large, or a divisor zero, and "
            "with it the write of that row, or its deletion. Keep the outcome in a column."
        )
    elif isinstance(when, (CombinedExpression, Lookup, NegatedExpression)):
        if isinstance(when, Lookup):
            yield from _lookup_refusals(when.lookup_name, when.rhs)
        for source in when.get_source_expressions():
            yield from refusals(source, model=model)
    elif isinstance(when, Now):
        yield (
            "Now() is the clock, and time passing fires no trigger. Keep the outcome in a "
            "column of its own, and filter by time when you search."
        )
    elif isinstance(when, Value):
        yield from _constant_refusals(when.value, model=model)
    else:
        yield (
            f"{type(when).__name__} is neither a column of the row nor a constant. Keep its "
            "outcome in a column, for instance a stored GeneratedField."
        )


def _lookup_refusals(name: str | None, value: Any) -> Iterator[str]:
    """Yield what is wrong with lookups that fail on some rows."""
    is_constant = isinstance(value, Value) or not hasattr(value, "resolve_expression")
    if name in {"regex", "iregex"} and not is_constant:
        yield (
            f"{name!r} fails where the other column is no valid pattern, and with it the write of "
            "that row. Compare with a constant."
        )
    elif name == "search":
        yield (
            "'search' fails on texts that are too long for it, and with it the write of that row. "
            "Keep the outcome in a column, or use 'icontains'."
        )


def _constant_refusals(value: Any, *, model: type[Model]) -> Iterator[str]:
    if isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _constant_refusals(item, model=model)
    elif hasattr(value, "resolve_expression"):
        yield from refusals(value, model=model)
    elif isinstance(value, Promise):
        yield "a lazy text is another one in each language. Give the text that is stored."
    elif callable(value) and not isinstance(value, type):
        yield f"{value!r} is a function. Give its result, if that is a constant."
    elif isinstance(value, Iterator):
        yield f"a {type(value).__name__} can be read once only. Give a list of what is in it."


def _path_refusals(path: str, *, model: type[Model], is_lookup: bool) -> Iterator[str]:
    first, *rest = path.split("__")
    try:
        field = model._meta.pk if first == "pk" else model._meta.get_field(first)
    except FieldDoesNotExist:
        yield f"no field named {first!r}. {_columns_hint(first, model)}"
        return
    problem = column_problem(field, model=model)
    if problem:
        yield f"{first!r} {problem}"
    elif rest and getattr(field, "is_relation", False) and not _is_lookup(field, rest, is_lookup):
        yield (
            f"{path!r} follows a relation, and a trigger sees one row. Compare "
            f"{first!r} itself, or copy the value into a column of {model.__name__}."
        )
    elif rest and not _is_lookup(field, rest, is_lookup):
        yield (
            f"{path!r} transforms {first!r}. Compare the column as it is, or keep the "
            "outcome in a column, for instance a stored GeneratedField."
        )


def _is_lookup(field: Any, rest: list[str], is_lookup: bool) -> bool:
    """Return whether the rest of a path is a single lookup, such as ``isnull``."""
    return is_lookup and len(rest) == 1 and field.get_lookup(rest[0]) is not None


def column_problem(field: Any, *, model: type[Model]) -> str | None:
    """Return why a trigger on the model's table cannot see this field, or None if it can."""
    if getattr(field, "many_to_many", False):
        return (
            "is many-to-many: it lives in a table of its own, and a change of it fires no "
            f"trigger of {model.__name__}. Name a column there in related, for instance "
            f"'{field.name}__name', or copy what matters into a column."
        )
    if not isinstance(field, Field) or not field.concrete or field.column is None:
        return (
            "is not a column of the table: it is reverse, generic or computed. Name the columns "
            "that it is made of."
        )
    if isinstance(field, GeneratedField) and not getattr(field, "db_persist", True):
        return (
            "is a virtual generated column, which triggers do not see. "
            "Make it db_persist=True, or name the columns that it is made of."
        )
    return None


def _columns_hint(name: str, model: type[Model]) -> str:
    """Return the end of an error message: the fields that can be named."""
    names = [field.name for field in model._meta.concrete_fields]
    return f"{did_you_mean(name, names)}Fields of {model.__name__} are: {', '.join(names)}."
