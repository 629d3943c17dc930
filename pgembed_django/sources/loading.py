"""Make the texts of source rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.db import models

from pgembed_django import database
from pgembed_django.sources.rows import Row, fetch, of_units, with_source_pk
from pgembed_django.specs import Spec
from pgembed_django.user_code import Failed, UserCode

Digests = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Texts and errors by source_pk, and rows whose texts there was no time to make.

    Units in none of them have no row that matches the condition.
    """

    texts: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    hindered: set[str] = field(default_factory=set)
    """Those with an error for which others on the database are to blame."""


def load(spec: Spec, source_pks: Sequence[str], *, using: str) -> Loaded:
    """Return the texts of units. Returns none if a writer has locked the whole table."""
    try:
        return give_way_and_load(spec, source_pks, using=using)
    except database.Busy:
        return Loaded()


def give_way_and_load(
    spec: Spec, source_pks: Sequence[str], *, using: str, seconds: float = math.inf
) -> Loaded:
    """Return the texts of units. Makes no more of them after ``seconds``.

    Raises:
        Busy: a writer has locked the whole table.
    """
    with database.giving_way(using):
        found = fetch(spec, of_units(spec, list(source_pks), using=using))
    return made(spec, *found, using=using, seconds=seconds)


def read(spec: Spec, rows: models.QuerySet[Any]) -> Loaded:
    """Return the texts of rows."""
    return made(spec, *fetch(spec, with_source_pk(spec, rows)), using=rows.db)


def digests(spec: Spec, rows: models.QuerySet[Any], *, seconds: float) -> tuple[Digests, Any]:
    """Return the digests of rows' texts by source_pk. Stops after ``seconds``.

    The second value is the key of the last row if this stopped early, else None. Rows whose text
    cannot be made are left out. No text is kept in memory: a text method may make long texts from
    short rows.
    """
    found, _ = fetch(spec, with_source_pk(spec, rows).order_by("pk"))
    until = time.monotonic() + seconds
    digests = {}
    for source_pk, text, error in _each(spec, found, using=rows.db):
        if not error:
            digests[source_pk] = spec.text_digest(text)
        has_more = bool(found)  # _each takes out the rows that it has yielded
        if has_more and time.monotonic() >= until:
            return digests, spec.parse_pk(source_pk)
    return digests, None


def made(
    spec: Spec,
    found: list[Row],
    errors: Mapping[str, str],
    *,
    using: str,
    seconds: float = math.inf,
) -> Loaded:
    """Return the texts of the rows in ``found``, and the given errors of rows that are not in it.

    Makes no more of them after ``seconds``. Empties ``found``, to free the rows one by one.
    """
    until = time.monotonic() + seconds
    loaded = Loaded(errors=dict(errors))
    for source_pk, text, error in _each(spec, found, using=using):
        if error:
            loaded.errors[source_pk] = str(error)
            if error.may_pass:
                loaded.hindered.add(source_pk)
        else:
            loaded.texts[source_pk] = text
        if time.monotonic() >= until:
            break
    loaded.left.update(source_pk for source_pk, _ in found)
    return loaded


def _each(spec: Spec, found: list[Row], *, using: str) -> Iterator[tuple[str, str, Failed | None]]:
    """Empty a list of rows, and yield each one's source_pk, text and error."""
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
                yield source_pk, "", error
            else:
                yield source_pk, text, None
