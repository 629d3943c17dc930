"""Select the source rows of units, and read them, even if Python cannot represent some values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections, models
from django.db.models.functions import Cast

from pgembed_django import faults
from pgembed_django.specs import Spec
from pgembed_django.user_code import UserCode

Row = tuple[str, models.Model | Sequence[Any]]
"""A source_pk, and its instance or the values of its fields: see ``Spec.needs_instances``."""


def of_units(spec: Spec, source_pks: list[str], *, using: str) -> models.QuerySet[Any]:
    """Return the rows of units that match the spec's condition."""
    rows = spec.rows(using=using).filter(is_among(spec, source_pks, using=using))
    return with_source_pk(spec, rows)


def is_among(spec: Spec, source_pks: list[str], *, using: str) -> models.Func:
    """Return the condition that a row is one of these units, with all keys in one array.

    With ``pk__in`` the statement would differ for each number of units.
    """
    key = spec.model._meta.pk.db_type(connections[using])
    return models.Func(
        models.F("pk"),
        models.Value(source_pks),
        arg_joiner=" = ANY(",
        template=f"%(expressions)s::text[]::{key}[])",
        output_field=models.BooleanField(),
    )


def with_source_pk(spec: Spec, rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
    """Annotate the rows with ``pgembed_source_pk``, their key as Postgres prints it.

    They become tuples of values, with that key at the end, if no instances are needed.
    """
    annotated: models.QuerySet[Any] = rows.annotate(
        pgembed_source_pk=Cast("pk", models.TextField())
    )
    if spec.needs_instances:
        return annotated
    fields: list[Any] = [spec.model._meta.get_field(name) for name in spec.fields]
    return annotated.values_list(*(field.attname for field in fields), "pgembed_source_pk")


def as_row(spec: Spec, made: Any) -> Row:
    """Return what a query ``with_source_pk`` has made of a row."""
    if spec.needs_instances:
        return made.pgembed_source_pk, made
    *values, source_pk = made
    return source_pk, values


def fetch(spec: Spec, rows: models.QuerySet[Any]) -> tuple[list[Row], dict[str, str]]:
    """Read rows ``with_source_pk``. Return them, and the errors of unreadable ones by source_pk.

    A column may contain a value that Python cannot represent: the date ``infinity``, JSON that is
    nested too deeply, data that was encrypted with a lost key. Bisection finds such rows.
    """
    try:
        with UserCode(using=rows.db, only_values=not spec.needs_instances).reading():
            return [as_row(spec, made) for made in rows], {}
    except faults.Unreadable as error:
        keys = list(dict.fromkeys(rows.values_list("pk", "pgembed_source_pk")))
        if len(keys) < 2:
            return [], {source_pk: str(error) for _, source_pk in keys}
    found: list[Row] = []
    errors: dict[str, str] = {}
    middle = len(keys) // 2
    for half in (keys[:middle], keys[middle:]):
        of_half, errors_of_half = fetch(spec, rows.filter(pk__in=[pk for pk, _ in half]))
        found += of_half
        errors |= errors_of_half
    return found, errors
