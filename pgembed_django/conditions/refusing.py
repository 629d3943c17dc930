"""Say why a trigger cannot test a spec's ``when``.

A trigger sees only a row's own columns, and only when the row is written. So relations,
subqueries and the clock are refused, rather than compiled to SQL that looks right but is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.exceptions import FieldDoesNotExist
from django.db.models import Field, GeneratedField, Model, Q
from django.db.models.expressions import Combinable, CombinedExpression, F, NegatedExpression, Value
from django.db.models.functions import Now
from django.db.models.lookups import Lookup
from django.utils.functional import Promise

from pgembed_django.exceptions import did_you_mean

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
            f"trigger of {model.__name__}. Copy what matters into a column."
        )
    if not isinstance(field, Field) or not field.concrete or field.column is None:
        return (
            "is not a column of the table: it is reverse, generic or computed. Name the columns "
            "that it is made of."
        )
    if field.model._meta.concrete_model is not model._meta.concrete_model:
        return (
            f"is in the table of {field.model.__name__}, which {model.__name__} inherits from, "
            f"and a spec watches one table. Decorate {field.model.__name__} instead, or name "
            f"only fields that {model.__name__} itself defines."
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
