"""Select the source rows of units, and read them, even if Python cannot represent some values."""

from __future__ import annotations

from typing import Any

from django.db import connections, models
from django.db.models.functions import Cast

from pgembed_django import faults
from pgembed_django.specs import Spec

Row = tuple[str, models.Model]
"""A source_pk and its instance."""


def of_units(spec: Spec, source_pks: list[str], *, using: str) -> models.QuerySet[Any]:
    """Return the rows of units that match the spec's condition."""
    return with_source_pk(spec.rows(using=using).filter(is_among(spec, source_pks, using=using)))


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


def with_source_pk(rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
    """Annotate the rows with ``pgembed_source_pk``, their key as Postgres prints it."""
    annotated: models.QuerySet[Any] = rows.annotate(
        pgembed_source_pk=Cast("pk", models.TextField())
    )
    return annotated


def fetch(rows: models.QuerySet[Any]) -> tuple[list[Row], dict[str, str]]:
    """Read rows ``with_source_pk``. Return them, and the errors of unreadable ones by source_pk.

    A column may contain a value that Python cannot represent: the date ``infinity``, JSON that is
    nested too deeply, data that was encrypted with a lost key. Bisection finds such rows.
    """
    try:
        with faults.reading():
            return [(row.pgembed_source_pk, row) for row in rows], {}
    except faults.Unreadable as error:
        keys = list(dict.fromkeys(rows.values_list("pk", "pgembed_source_pk")))
        if len(keys) < 2:
            return [], {source_pk: str(error) for _, source_pk in keys}
    found: list[Row] = []
    errors: dict[str, str] = {}
    middle = len(keys) // 2
    for half in (keys[:middle], keys[middle:]):
        of_half, errors_of_half = fetch(rows.filter(pk__in=[pk for pk, _ in half]))
        found += of_half
        errors |= errors_of_half
    return found, errors
