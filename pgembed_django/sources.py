"""Read source rows and make their texts, without ever locking the rows.

Rows are read by their total length, not by their number, and even if Python cannot represent some
of their values. ``Reading`` is the way of claimed units, with queries that are compiled only once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from typing import Any, Final

from django.core.exceptions import EmptyResultSet
from django.db import connections, models
from django.db.models.functions import Cast, Coalesce

from pgembed_django.core import database, faults, postgres
from pgembed_django.core import languages as full_text
from pgembed_django.core.adapting import halves
from pgembed_django.core.user_code import Failed, UserCode
from pgembed_django.declaration import relations
from pgembed_django.declaration.relations import TEXTUAL
from pgembed_django.declaration.specs import RELATED, Spec

READ_BYTES = 2**24
"""How many bytes of text to read or make at once: of many small rows, or a few large ones."""

MADE_SECONDS = 5.0
"""How long to make texts without a break. No lease is renewed meanwhile."""

LENGTH = "octet_length(%(expressions)s::text)"
# The text length of JSON is only known by reading it, so estimate it from the stored size. Long
# values are stored compressed, hence the factor.
STORED_LENGTH = "4 * pg_column_size(%(expressions)s)"

Row = tuple[str, models.Model | Sequence[Any]]
"""A source_pk, and its instance or the values of its text: see ``Spec.needs_instances``."""


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


def languages(spec: Spec, source_pks: Sequence[str], *, using: str) -> Mapping[str, str | None]:
    """Return the full-text configurations for units' words, by source_pk. None: for no words.

    Units in none of them have no row any more, if a column holds the languages of rows.
    """
    default = spec.configuration if spec.stores_words else None
    if default is None or spec.language_column is None:
        return dict.fromkeys(source_pks, default)
    with database.giving_way(using):
        known = postgres.languages(using)
        rows = spec.all_rows(using=using).filter(is_among(spec, list(source_pks), using=using))
        found = rows.values_list(
            Cast("pk", models.TextField()), Cast(spec.language_column, models.TextField())
        )
        return {
            source_pk: full_text.of_value(value, known=known, default=default)
            for source_pk, value in found
        }


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
    The values of ``related`` count, too. What else is prefetched for a text method does not.
    """
    fields: list[Any] = [spec.model._meta.get_field(name) for name in spec.fields]
    if spec.reads_whole_rows:
        concrete = spec.model._meta.concrete_model or spec.model
        fields = list(concrete._meta.concrete_fields)
    lengths: list[Any] = [
        models.Func(
            models.F(field.attname),
            template=LENGTH if isinstance(field, TEXTUAL) else STORED_LENGTH,
            output_field=models.BigIntegerField(),
        )
        for field in fields
    ]
    for one in [one for one in spec.relations.values if not one.is_cast]:
        values = models.Func(
            models.F(one.lookup), template=LENGTH, output_field=models.BigIntegerField()
        )
        of_row = spec.model._base_manager.filter(pk=models.OuterRef("pk")).order_by().values("pk")
        of_row = of_row.annotate(pgembed_length=models.Sum(values)).values("pgembed_length")
        lengths.append(models.Subquery(of_row, output_field=models.BigIntegerField()))
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


def with_related(spec: Spec, found: list[Row], *, using: str) -> list[Row]:
    """Read what the rows' texts are made of in other tables: a query per relation.

    It may be newer than the rows. What changes later has ripples of its own.
    """
    if spec.text or not (spec.related and found):
        return found  # what a method reads is prefetched
    keys = [spec.parse_pk(source_pk) for source_pk, _ in found]
    related = relations.read(spec, keys, using=using)
    for number, (source_pk, row) in enumerate(found):
        of_row = related.get(source_pk, [])
        if isinstance(row, models.Model):
            vars(row)[RELATED] = of_row
        else:
            found[number] = source_pk, [*row, *of_row]
    return found


def fetch(spec: Spec, rows: models.QuerySet[Any]) -> tuple[list[Row], dict[str, str]]:
    """Read rows ``with_source_pk``. Return them, and the errors of unreadable ones by source_pk.

    A column may contain a value that Python cannot represent: the date ``infinity``, JSON that is
    nested too deeply, data that was encrypted with a lost key. Bisection finds such rows.
    """
    try:
        with UserCode(using=rows.db, only_values=not spec.needs_instances).reading():
            return with_related(spec, [as_row(spec, made) for made in rows], using=rows.db), {}
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
                room -= len(text) if spec.text or spec.related else 0
            if room <= 0 or time.monotonic() >= until:
                break
    loaded.left.update({source_pk for source_pk, _ in found})
    return loaded


UNITS: Final[list[str]] = []
"""Placeholder for the keys of the units."""


class Compiled:
    """A query that is compiled once, with placeholders among its parameters.

    Django takes longer to compile such a query than Postgres takes to answer it: 0.7 ms of each
    claim. Its rows are converted to instances here, as a plain queryset would do.
    """

    def __init__(self, rows: models.QuerySet[Any], *, using: str) -> None:
        self._rows = rows
        self._using = using
        self._compiler: Any = rows.query.get_compiler(using)
        self._statement, self._parameters = self._compiler.as_sql()

    @property
    def takes_units(self) -> bool:
        """Whether ``UNITS`` is still among the compiled parameters."""
        return any(one is UNITS for one in self._parameters)

    def execute(self, source_pks: Sequence[str]) -> Any:
        """Send the query for these units, and return its cursor."""
        units = list(source_pks)
        cursor = connections[self._using].cursor()
        parameters = [units if one is UNITS else one for one in self._parameters]
        cursor.execute(self._statement, parameters)
        return cursor

    def rows(self, spec: Spec, found: list[tuple[Any, ...]]) -> list[Row]:
        """Return the rows that the queryset would have made, each with its source_pk."""
        made = self._compiler.results_iter([found])
        if not spec.needs_instances:
            return [(source_pk, values) for *values, source_pk in made]
        columns = self._compiler.klass_info["select_fields"]
        names = [self._compiler.select[column][0].target.attname for column in columns]
        source_pk = self._compiler.annotation_col_map["pgembed_source_pk"]
        from_db = self._rows.model.from_db
        return [
            (row[source_pk], from_db(self._using, names, [row[column] for column in columns]))
            for row in made
        ]


class Reading:
    """Reads units of one spec, over one connection."""

    def __init__(self, spec: Spec, *, using: str) -> None:
        self.spec = spec
        self.using = using
        plain: models.QuerySet[Any] = models.QuerySet(spec.model, using=using)
        among = plain.filter(is_among(spec, UNITS, using=using)).order_by()
        sized = among.values_list(Cast("pk", models.TextField()), length_of(spec))
        self._lengths = Compiled(sized, using=using)
        self._texts: Compiled | None = None
        """None: a queryset must do it."""
        # A custom base manager may join, prefetch, or make other instances. What is related takes
        # further queries. And if no row can match the condition, there is no statement.
        if type(spec.model._base_manager) is models.Manager and not spec.related:
            with suppress(EmptyResultSet):
                compiled = Compiled(of_units(spec, UNITS, using=using), using=using)
                if compiled.takes_units:
                    self._texts = compiled

    def fitting(self, source_pks: Sequence[str], *, room: float) -> Sequence[str]:
        """Return the first of these units whose rows have ``room`` bytes in total."""
        with self._lengths.execute(source_pks) as cursor:
            lengths = dict(cursor.fetchall())
        for number, source_pk in enumerate(source_pks):
            room -= lengths.get(source_pk, 0)
            if room < 0:
                return source_pks[:number]
        return source_pks

    def ask(self, source_pks: Sequence[str]) -> database.Read[Loaded]:
        """Send the query for units, and return a function that reads their texts.

        See ``database.send``. Call it after the claim has committed, and in
        ``database.giving_way``: if the whole table is locked (TRUNCATE, ALTER TABLE), the
        returned function raises ``Busy``.
        """
        compiled = self._texts
        if compiled is None:
            return lambda: self._ask_queryset(source_pks)
        cursor = compiled.execute(source_pks)

        def texts() -> Loaded:
            code = UserCode(using=self.using, only_values=not self.spec.needs_instances)
            try:
                with code.reading(), cursor:
                    found = compiled.rows(self.spec, cursor.fetchall())
                self._prefetch(found)
            except faults.Unreadable:
                return self._ask_queryset(source_pks)
            return self._made(found, {})

        return texts

    def _prefetch(self, found: Sequence[Row]) -> None:
        """Read the relations of all rows, which a text method needs, with one query for each."""
        if self.spec.prefetch:
            rows: list[Any] = [row for _, row in found]
            with database.giving_way(self.using), UserCode(using=self.using).reading():
                models.prefetch_related_objects(rows, *self.spec.prefetch)

    def _ask_queryset(self, source_pks: Sequence[str]) -> Loaded:
        with database.giving_way(self.using):
            rows = of_units(self.spec, list(source_pks), using=self.using)
            found = fetch(self.spec, rows)
        return self._made(*found)

    def _made(self, found: list[Row], errors: Mapping[str, str]) -> Loaded:
        room = READ_BYTES
        return made(self.spec, found, errors, using=self.using, seconds=MADE_SECONDS, room=room)
