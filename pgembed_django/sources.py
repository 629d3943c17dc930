"""Read source rows: the committed text of claimed units, and never a lock on them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from django.core.exceptions import EmptyResultSet
from django.db import connections, models, transaction
from django.db.models.functions import Cast

from pgembed_django import database, faults, lengths, locales
from pgembed_django.specs import Spec

Row = tuple[str, models.Model]
"""An instance, after its source_pk."""

Digests = dict[str, bytes]

UNITS: Final[list[str]] = []
"""Placeholder for the units, among the parameters of a statement that is compiled once."""

ROOM: Final = object()
"""Placeholder for how many bytes their texts may have in total."""

Compiled = tuple[str, Sequence[Any]]
"""A statement, and its parameters."""


class TooMuch(Exception):
    """The texts are longer than the room for them, or there are none: ask for their lengths."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Texts and errors by source_pk. Units in neither have no row in the spec's condition."""

    texts: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


class Reading:
    """Reads units of one spec, over one connection, with statements that are compiled once.

    Django takes longer to compile one than Postgres to answer it.
    """

    def __init__(self, spec: Spec, *, using: str) -> None:
        self.spec = spec
        self.using = using
        plain: models.QuerySet[Any] = models.QuerySet(spec.model, using=using)
        among = plain.filter(_is_among(spec, UNITS, using=using)).order_by()
        sized = among.values_list(Cast("pk", models.TextField()), lengths.length_of(spec))
        self._lengths: Compiled = sized.query.get_compiler(using).as_sql()
        rows = _rows(spec, UNITS, using=using)
        self._compiler: Any = rows.query.get_compiler(using)
        self._any: Compiled | None = None
        """Reads them however long they are."""
        self._fitting: Compiled | None = None
        """Reads them, or none of them where there is not room for all."""
        # Another base manager may join, prefetch, or make other instances. And where no row
        # can be in the condition, there is no statement.
        if type(spec.model._base_manager) is models.Manager:
            with suppress(EmptyResultSet):
                statement, parameters = self._compiler.as_sql()
                if any(given is UNITS for given in parameters):
                    self._any = statement, parameters
                    fitting = rows.filter(_fits(lengths.total(spec, among)))
                    self._fitting = fitting.query.get_compiler(using).as_sql()

    def lengths(self, source_pks: Sequence[str]) -> dict[str, int]:
        """Return about how many bytes are read of each unit's row."""
        with connections[self.using].cursor() as cursor:
            cursor.execute(*_given(self._lengths, source_pks))
            return dict(cursor.fetchall())

    def ask(self, source_pks: Sequence[str], *, room: float = math.inf) -> database.Read[Loaded]:
        """Send the query for units, and return a function that reads their texts.

        See ``database.send``. Call it after the claim has committed, and in
        ``database.giving_way``, for the whole table may be locked (TRUNCATE, ALTER TABLE): the
        function that is returned raises ``Busy`` then.

        Raises:
            TooMuch: the texts may have more than ``room`` bytes in total. The function that is
                returned raises it, too.
        """
        is_bounded = room < math.inf
        statement = self._fitting if is_bounded else self._any
        if statement is None:
            if is_bounded:
                raise TooMuch
            return lambda: _give_way_and_read(self.spec, source_pks, using=self.using)
        cursor = connections[self.using].cursor()
        cursor.execute(*_given(statement, source_pks, room=room))

        def texts() -> Loaded:
            try:
                with faults.reading(), cursor:
                    found = list(self._instances(cursor.fetchall()))
            except faults.Unreadable:
                return _give_way_and_read(self.spec, source_pks, using=self.using)
            if is_bounded and not found:
                raise TooMuch
            return _texts(self.spec, found, {}, using=self.using)

        return texts

    def _instances(self, found: list[tuple[Any, ...]]) -> Iterator[Row]:
        """Make the instances that the queryset would have made, each with its source_pk."""
        columns = self._compiler.klass_info["select_fields"]
        names = [self._compiler.select[column][0].target.attname for column in columns]
        source_pk = self._compiler.annotation_col_map["pgembed_source_pk"]
        for row in self._compiler.results_iter([found]):
            values = [row[column] for column in columns]
            yield row[source_pk], self.spec.model.from_db(self.using, names, values)


def load(spec: Spec, source_pks: Sequence[str], *, using: str) -> Loaded:
    """Return the texts of units. None where a writer holds the whole table."""
    try:
        return _give_way_and_read(spec, source_pks, using=using)
    except database.Busy:
        return Loaded()


def read(spec: Spec, rows: models.QuerySet[Any]) -> Loaded:
    """Return the texts of rows."""
    return _texts(spec, *_fetch(_with_source_pk(rows)), using=rows.db)


@locales.of_settings()
def digests(spec: Spec, rows: models.QuerySet[Any], *, seconds: float) -> tuple[Digests, Any]:
    """Return the digests of rows' texts, and the last key if it stopped early, after ``seconds``.

    Rows whose text cannot be made are left out. No text is kept: a text method may make long
    texts of short rows.
    """
    found, _ = _fetch(_with_source_pk(rows).order_by("pk"))
    keys, until = [row.pk for _, row in found], time.monotonic() + seconds
    digests = {}
    for source_pk, text, error in _each(spec, found, using=rows.db):
        if not error:
            digests[source_pk] = spec.text_digest(text)
        if found and time.monotonic() >= until:
            return digests, keys[-len(found) - 1]
    return digests, None


def _give_way_and_read(spec: Spec, source_pks: Sequence[str], *, using: str) -> Loaded:
    with database.giving_way(using):
        found = _fetch(_rows(spec, list(source_pks), using=using))
    return _texts(spec, *found, using=using)


def _fetch(rows: models.QuerySet[Any]) -> tuple[list[Row], dict[str, str]]:
    """Return rows, and the errors of those that cannot be read, by source_pk.

    A column may hold a value that Python cannot represent: the date ``infinity``, JSON that is
    nested too deeply, something encrypted with a lost key. Such a row is found by bisection.
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
        of_half, errors_of_half = _fetch(rows.filter(pk__in=[pk for pk, _ in half]))
        found += of_half
        errors |= errors_of_half
    return found, errors


@locales.of_settings()
def _texts(spec: Spec, found: list[Row], errors: Mapping[str, str], *, using: str) -> Loaded:
    loaded = Loaded(errors=dict(errors))
    for source_pk, text, error in _each(spec, found, using=using):
        if error:
            loaded.errors[source_pk] = error
        else:
            loaded.texts[source_pk] = text
    return loaded


def _each(spec: Spec, found: list[Row], *, using: str) -> Iterator[tuple[str, str, str]]:
    """Empty a list of rows, and yield the source_pk of each, its text and its error."""
    # A query that fails in a text method is not to take our transaction along.
    is_apart = spec.text is not None and connections[using].in_atomic_block
    found.reverse()
    while found:
        source_pk, row = found.pop()
        try:
            with transaction.atomic(using=using) if is_apart else nullcontext():
                text = spec.text_of(row)
        except faults.EXITS:
            raise
        except BaseException as error:
            # Whatever the user's own method raises, its job ends with it. It may have
            # asked another database.
            is_lost = faults.is_lost_connection(error) and database.is_lost(using)
            if is_lost or faults.has_no_room(error):
                raise
            yield source_pk, "", f"{type(error).__name__}: {error}"
        else:
            yield source_pk, text, ""


def _rows(spec: Spec, source_pks: list[str], *, using: str) -> models.QuerySet[Any]:
    """Return the rows of units, by one array of keys.

    With ``pk__in`` each number of units would be a statement of its own.
    """
    return _with_source_pk(spec.rows(using=using).filter(_is_among(spec, source_pks, using=using)))


def _is_among(spec: Spec, source_pks: list[str], *, using: str) -> models.Func:
    key = spec.model._meta.pk.db_type(connections[using])
    return models.Func(
        models.F("pk"),
        models.Value(source_pks),
        arg_joiner=" = ANY(",
        template=f"%(expressions)s::text[]::{key}[])",
        output_field=models.BooleanField(),
    )


def _fits(total: models.Subquery) -> models.Func:
    return models.Func(
        total,
        models.Value(ROOM),
        arg_joiner=" <= ",
        template="%(expressions)s",
        output_field=models.BooleanField(),
    )


def _given(compiled: Compiled, source_pks: Sequence[str], *, room: float = 0) -> Compiled:
    """Return a statement with its parameters for these units."""
    statement, parameters = compiled
    units = list(source_pks)
    return statement, [
        units if one is UNITS else int(room) if one is ROOM else one for one in parameters
    ]


def _with_source_pk(rows: models.QuerySet[Any]) -> models.QuerySet[Any]:
    annotated: models.QuerySet[Any] = rows.annotate(
        pgembed_source_pk=Cast("pk", models.TextField())
    )
    return annotated
