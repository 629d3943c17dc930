"""Make the texts of source rows. A spec's text method is user code, which may raise anything."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from django.db import connections, models, transaction

from pgembed_django import database, faults, locales
from pgembed_django.sources.rows import Row, fetch, of_units, with_source_pk
from pgembed_django.specs import Spec

Digests = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Texts and errors by source_pk. Units in neither have no row that matches the condition."""

    texts: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def load(spec: Spec, source_pks: Sequence[str], *, using: str) -> Loaded:
    """Return the texts of units. Returns none if a writer has locked the whole table."""
    try:
        return give_way_and_load(spec, source_pks, using=using)
    except database.Busy:
        return Loaded()


def give_way_and_load(spec: Spec, source_pks: Sequence[str], *, using: str) -> Loaded:
    """Return the texts of units.

    Raises:
        Busy: a writer has locked the whole table.
    """
    with database.giving_way(using):
        found = fetch(spec, of_units(spec, list(source_pks), using=using))
    return made(spec, *found, using=using)


def read(spec: Spec, rows: models.QuerySet[Any]) -> Loaded:
    """Return the texts of rows."""
    return made(spec, *fetch(spec, with_source_pk(spec, rows)), using=rows.db)


@locales.of_settings()
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


@locales.of_settings()
def made(spec: Spec, found: list[Row], errors: Mapping[str, str], *, using: str) -> Loaded:
    """Return the texts of the rows in ``found``, and the given errors of rows that are not in it.

    Empties ``found``, to free the rows one by one.
    """
    loaded = Loaded(errors=dict(errors))
    for source_pk, text, error in _each(spec, found, using=using):
        if error:
            loaded.errors[source_pk] = error
        else:
            loaded.texts[source_pk] = text
    return loaded


def _each(spec: Spec, found: list[Row], *, using: str) -> Iterator[tuple[str, str, str]]:
    """Empty a list of rows, and yield each one's source_pk, text and error (empty: none)."""
    # A query that fails in a text method must not abort our transaction.
    is_apart = spec.text is not None and connections[using].in_atomic_block
    found.reverse()
    while found:
        source_pk, row = found.pop()
        try:
            with transaction.atomic(using=using) if is_apart else nullcontext():
                if isinstance(row, models.Model):
                    text = spec.text_of(row)
                else:
                    text = spec.text_of_values(row)
        except BaseException as error:
            # Whatever the text method raises is the error of its row. A lost connection may be
            # that of another database, which the method asked.
            is_lost = faults.is_lost_connection(error) and database.is_lost(using)
            if is_lost or faults.has_no_room(error) or faults.is_interruption(error):
                raise
            yield source_pk, "", f"{type(error).__name__}: {error}"
        else:
            yield source_pk, text, ""
