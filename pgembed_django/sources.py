"""Read source rows: the committed text of claimed units, and never a lock on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import connections, models
from django.db.models.functions import Cast

from pgembed_django import database
from pgembed_django.specs import Spec


@dataclass(frozen=True, slots=True)
class Loaded:
    """Texts and errors by source_pk. Units in neither have no row in the spec's condition."""

    texts: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def load(spec: Spec, source_pks: Sequence[str], *, using: str) -> Loaded:
    """Return the texts of units. None where a writer holds the whole table."""
    try:
        with database.giving_way(using, in_one_go=True):
            found = list(rows(spec, source_pks, using=using))
    except database.Busy:
        return Loaded()
    return read(spec, found)


def rows(spec: Spec, source_pks: Sequence[str], *, using: str) -> models.QuerySet[Any]:
    """Return the rows of units, as ``read`` takes them.

    To be fetched after the claim has committed, and where a writer is given way: the whole
    table may be locked (TRUNCATE, ALTER TABLE).
    """
    found = spec.rows(using).filter(_is_among(spec, source_pks, using=using))
    annotated: models.QuerySet[Any] = found.annotate(
        pgembed_source_pk=Cast("pk", models.TextField())
    )
    return annotated


def read(spec: Spec, found: Iterable[Any]) -> Loaded:
    """Return the texts of rows that are annotated with ``pgembed_source_pk``."""
    loaded = Loaded()
    for row in found:
        source_pk = row.pgembed_source_pk
        try:
            loaded.texts[source_pk] = spec.text_of(row)
        except Exception as error:
            # Whatever the user's own method raises, its job is settled with it.
            if database.is_lost_connection(error):
                raise
            loaded.errors[source_pk] = f"{type(error).__name__}: {error}"
    return loaded


def _is_among(spec: Spec, source_pks: Sequence[str], *, using: str) -> models.Func:
    """Return the condition that a row is one of the units.

    ``pk__in`` would be another statement for each number of them, with a parameter for each.
    """
    key = spec.model._meta.pk.db_type(connections[using])
    return models.Func(
        models.F("pk"),
        models.Value(list(source_pks)),
        arg_joiner=" = ANY(",
        template=f"%(expressions)s::text[]::{key}[])",
        output_field=models.BooleanField(),
    )
