"""Read the texts of claimed units, with queries that are compiled only once, and cut them.

Django takes longer to compile such a query than Postgres takes to answer it: 0.7 ms of each claim.
So each is compiled once per spec, with placeholders among its parameters. Its rows are converted
to instances here, as a plain queryset would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import index
from typing import Any, Final

from django.core.exceptions import EmptyResultSet
from django.db import connections, models
from django.db.models.functions import Cast

from pgembed_django import database, faults, sources
from pgembed_django.chunking import Chunk, Chunker
from pgembed_django.providers.errors import without_texts
from pgembed_django.sources import Loaded, Row
from pgembed_django.specs import Spec
from pgembed_django.text import digest
from pgembed_django.user_code import Failed, UserCode

MADE_SECONDS = 5.0
"""How long texts are made of at once: meanwhile the worker renews no leases."""

UNITS: Final[list[str]] = []
"""Placeholder for the keys of the units."""


class Compiled:
    """A query that is compiled once."""

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
        among = plain.filter(sources.is_among(spec, UNITS, using=using)).order_by()
        sized = among.values_list(Cast("pk", models.TextField()), sources.length_of(spec))
        self._lengths = Compiled(sized, using=using)
        self._texts: Compiled | None = None
        """None: a queryset must do it."""
        # A custom base manager may join, prefetch, or make other instances. And if no row can
        # match the condition, there is no statement.
        if type(spec.model._base_manager) is models.Manager:
            with suppress(EmptyResultSet):
                compiled = Compiled(sources.of_units(spec, UNITS, using=using), using=using)
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
            except faults.Unreadable:
                return self._ask_queryset(source_pks)
            return self._made(found, {})

        return texts

    def _ask_queryset(self, source_pks: Sequence[str]) -> Loaded:
        with database.giving_way(self.using):
            rows = sources.of_units(self.spec, list(source_pks), using=self.using)
            found = sources.fetch(self.spec, rows)
        return self._made(*found)

    def _made(self, found: list[Row], errors: Mapping[str, str]) -> Loaded:
        room = sources.READ_BYTES
        return sources.made(
            self.spec, found, errors, using=self.using, seconds=MADE_SECONDS, room=room
        )


def split_each(
    spec: Spec, texts: Mapping[str, str], *, using: str
) -> tuple[dict[str, list[Chunk]], dict[str, str]]:
    """Return the chunks of each text, and the errors of texts that cannot be cut, by source_pk."""
    chunks, errors = {}, {}
    is_ours = type(spec.chunker) is Chunker and spec.chunker.count is None
    code = UserCode(using=using, only_values=is_ours)
    with code.watching():
        for source_pk, text in texts.items():
            cut = partial(split, spec.chunker, text)
            try:
                chunks[source_pk] = code.call(cut, spec=spec.key, source_pk=source_pk)
            except Failed as error:
                errors[source_pk] = without_texts(str(error), [text])
    return chunks, errors


def split(chunker: Chunker, text: str) -> list[Chunk]:
    """Return the chunks of a text, in order.

    Raises:
        ValueError: a subclass returned something else. It would be stored with others.
    """
    chunks = chunker.split(text)
    return chunks if type(chunker) is Chunker else _proven(chunks, chunker, text)


def _proven(chunks: Iterable[Any], chunker: Chunker, text: str) -> list[Chunk]:
    proven = []
    for position, chunk in enumerate(chunks):
        is_of_text = (
            isinstance(chunk, Chunk)
            and position < len(text)  # or an endless generator would never end
            and 0 <= index(chunk.start) < index(chunk.end) <= len(text)
            and chunk.text == text[chunk.start : chunk.end]
        )
        if not is_of_text:
            raise ValueError(
                f"{type(chunker).__name__}.split() returned something at {position} that is not "
                "a Chunk with the text from its start to its end."
            )
        start, end = index(chunk.start), index(chunk.end)
        proven.append(Chunk(position, start, end, text[start:end], digest(text[start:end])))
    return proven
