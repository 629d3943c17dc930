"""Choose how many rows to read at once by their total length, not by their number."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from django.db import models
from django.db.models.functions import Coalesce

from pgembed_django.specs import Spec

READ_BYTES = 2**24
"""How many bytes of text to read at once: many small rows, or a few large ones."""

TEXTUAL = (models.CharField, models.TextField)
LENGTH = "octet_length(%(expressions)s::text)"
# The text length of JSON is only known by reading it, so estimate it from the stored size. Long
# values are stored compressed, hence the factor.
STORED_LENGTH = "4 * pg_column_size(%(expressions)s)"


def fitting(spec: Spec, rows: models.QuerySet[Any], *, most: int) -> list[Any]:
    """Return the keys of the first rows that can be read at once, in key order: at least one."""
    sized = rows.order_by("pk").values_list("pk", length_of(spec))
    keys: list[Any] = []
    room = READ_BYTES
    for key, length in sized[:most]:
        room -= length
        if keys and room < 0:
            break
        keys.append(key)
    return keys


def total(spec: Spec, rows: models.QuerySet[Any]) -> models.Subquery:
    """Return an expression for the approximate total bytes of the rows."""
    summed = models.Func(length_of(spec), function="sum", output_field=models.BigIntegerField())
    return models.Subquery(rows.values_list(summed))


def length_of(spec: Spec) -> Any:
    """Return an expression for roughly how many bytes are read of a row.

    It does not read long values: they are stored outside the row, but the row has their length.
    """
    fields: list[Any] = [spec.model._meta.get_field(name) for name in spec.fields]
    if spec.reads_whole_rows:
        concrete = spec.model._meta.concrete_model or spec.model
        fields = list(concrete._meta.local_concrete_fields)
    lengths = [
        models.Func(
            models.F(field.attname),
            template=LENGTH if isinstance(field, TEXTUAL) else STORED_LENGTH,
            output_field=models.BigIntegerField(),
        )
        for field in fields
    ]
    return reduce(add, (Coalesce(length, 0) for length in lengths))
