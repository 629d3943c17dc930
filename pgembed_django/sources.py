"""Read source rows and make their texts, without ever locking the rows.

Rows are read by their total length, not by their number, and even if Python cannot represent some
of their values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from typing import Any

from django.db import connections, models
from django.db.models.functions import Cast, Coalesce

from pgembed_django import database, faults
from pgembed_django.adapting import halves
from pgembed_django.specs import Spec
from pgembed_django.user_code import Failed, UserCode

READ_BYTES = 2**24
"""How many bytes of text to read or make at once: of many small rows, or a few large ones."""

TEXTUAL = (models.CharField, models.TextField)
LENGTH = "octet_length(%(expressions)s::text)"
# The text length of JSON is only known by reading it, so estimate it from the stored size. Long
# values are stored compressed, hence the factor.
STORED_LENGTH = "4 * pg_column_size(%(expressions)s)"

Row = tuple[str, models.Model | Sequence[Any]]
"""A source_pk, and its instance or the values of its fields: see ``Spec.needs_instances``."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Texts and errors by source_pk, and rows whose texts there was no time or room to make.

    Units in none of them have no row that matches the condition.
    """

    texts: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    hindered: set[str] = field(default_factory=set)
    """Those with an error for which others on the database are to blame."""


def load(spec: Spec, source_pks: Sequence[str], *, using: str) -> Loaded:
    """Return the texts of units. Returns none if a writer has locked the whole table."""
    try:
        with database.giving_way(using):
            found = fetch(spec, of_units(spec, list(source_pks), using=using))
    except database.Busy:
        return Loaded()
    return made(spec, *found, using=using)


def read(spec: Spec, rows: models.QuerySet[Any]) -> Loaded:
    """Return the texts of rows."""
    return made(spec, *fetch(spec, with_source_pk(spec, rows)), using=rows.db)


def digests(
    spec: Spec, rows: models.QuerySet[Any], *, seconds: float
) -> tuple[dict[str, bytes], Any]:
    """Return the digests of rows' texts by source_pk. Stops after ``seconds``.

    The second value is the key of the last row if this stopped early, else None. Rows whose text
    cannot be made are left out. No text is kept in memory: a text method may make long texts from
    short rows.
    """
    found, _ = fetch(spec, with_source_pk(spec, rows).order_by("pk"))
    keys = [source_pk for source_pk, _ in found]
    loaded = made(spec, found, {}, using=rows.db, seconds=seconds, keep=spec.text_digest)
    last = spec.parse_pk(keys[-len(loaded.left) - 1]) if loaded.left else None
    return loaded.texts, last


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
    for half in halves(keys):
        of_half, errors_of_half = fetch(spec, rows.filter(pk__in=[pk for pk, _ in half]))
        found += of_half
        errors |= errors_of_half
    return found, errors


def made(
    spec: Spec,
    found: list[Row],
    errors: Mapping[str, str],
    *,
    using: str,
    seconds: float = math.inf,
    room: float = math.inf,
    keep: Callable[[str], Any] = str,
) -> Loaded:
    """Return the texts of the rows in ``found``, and the given errors of rows that are not in it.

    Makes no more of them after ``seconds``, or when the texts of a method have ``room``
    characters. Empties ``found``, to free the rows one by one.
    """
    until = time.monotonic() + seconds
    loaded = Loaded(errors=dict(errors))
    code = UserCode(using=using, only_values=not spec.needs_instances)
    found.reverse()
    with code.watching():
        while found:
            source_pk, row = found.pop()
            is_instance = isinstance(row, models.Model)
            of_row: Callable[[Any], str] = spec.text_of if is_instance else spec.text_of_values
            try:
                text = code.call(partial(of_row, row), spec=spec.key, source_pk=source_pk)
            except Failed as error:
                loaded.errors[source_pk] = str(error)
                if error.may_pass:
                    loaded.hindered.add(source_pk)
            else:
                loaded.texts[source_pk] = keep(text)
                room -= len(text) if spec.text else 0
            if room <= 0 or time.monotonic() >= until:
                break
    loaded.left.update({source_pk for source_pk, _ in found})
    return loaded
