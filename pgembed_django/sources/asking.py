"""Read the rows of any number of claimed units with queries that are compiled only once.

Django takes longer to compile such a query than Postgres takes to answer it. So each query is
compiled once per spec, with placeholders among its parameters. Its rows are converted to instances
here, as a plain queryset would do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from django.core.exceptions import EmptyResultSet
from django.db import connections, models
from django.db.models.functions import Cast

from pgembed_django import database, faults, lengths
from pgembed_django.sources.loading import Loaded, give_way_and_load, made
from pgembed_django.sources.rows import Row, as_row, is_among, of_units
from pgembed_django.specs import Spec
from pgembed_django.user_code import UserCode

MADE_SECONDS = 5.0
"""How long texts are made of at once: meanwhile the worker renews no leases."""

UNITS: Final[list[str]] = []
"""Placeholder for the keys of the units."""

ROOM: Final = object()
"""Placeholder for how many bytes the units' texts may have in total."""


class TooMuch(Exception):
    """The texts do not fit the room for them, or no rows were found: ask for their lengths."""


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

    def execute(self, source_pks: Sequence[str], *, room: float = 0) -> Any:
        """Send the query for these units, and return its cursor."""
        units = list(source_pks)
        cursor = connections[self._using].cursor()
        cursor.execute(
            self._statement,
            [
                units if one is UNITS else int(room) if one is ROOM else one
                for one in self._parameters
            ],
        )
        return cursor

    def rows(self, spec: Spec, found: list[tuple[Any, ...]]) -> Iterator[Row]:
        """Yield the rows that the queryset would have made, each with its source_pk."""
        made = self._compiler.results_iter([found])
        if not spec.needs_instances:
            yield from (as_row(spec, values) for values in made)
            return
        columns = self._compiler.klass_info["select_fields"]
        names = [self._compiler.select[column][0].target.attname for column in columns]
        source_pk = self._compiler.annotation_col_map["pgembed_source_pk"]
        for row in made:
            values = [row[column] for column in columns]
            yield row[source_pk], self._rows.model.from_db(self._using, names, values)


class Reading:
    """Reads units of one spec, over one connection."""

    def __init__(self, spec: Spec, *, using: str) -> None:
        self.spec = spec
        self.using = using
        plain: models.QuerySet[Any] = models.QuerySet(spec.model, using=using)
        among = plain.filter(is_among(spec, UNITS, using=using)).order_by()
        sized = among.values_list(Cast("pk", models.TextField()), lengths.length_of(spec))
        self._lengths = Compiled(sized, using=using)
        self._any: Compiled | None = None
        """Reads the units, however long they are. None: a queryset must do it."""
        self._fitting: Compiled | None = None
        """Reads the units, or none of them if there is not room for all."""
        # A custom base manager may join, prefetch, or make other instances. And if no row can
        # match the condition, there is no statement.
        if type(spec.model._base_manager) is models.Manager:
            with suppress(EmptyResultSet):
                rows = of_units(spec, UNITS, using=using)
                compiled = Compiled(rows, using=using)
                if compiled.takes_units:
                    fits = _fits(lengths.total(spec, among))
                    self._any = compiled
                    self._fitting = Compiled(rows.filter(fits), using=using)

    def lengths(self, source_pks: Sequence[str]) -> dict[str, int]:
        """Return roughly how many bytes are read of each unit's row, by source_pk."""
        with self._lengths.execute(source_pks) as cursor:
            return dict(cursor.fetchall())

    def ask(self, source_pks: Sequence[str], *, room: float = math.inf) -> database.Read[Loaded]:
        """Send the query for units, and return a function that reads their texts.

        See ``database.send``. Call it after the claim has committed, and in
        ``database.giving_way``: if the whole table is locked (TRUNCATE, ALTER TABLE), the
        returned function raises ``Busy``.

        Raises:
            TooMuch: the texts may have more than ``room`` bytes in total. The returned function
                may raise it too.
        """
        is_bounded = room < math.inf
        compiled = self._fitting if is_bounded else self._any
        if compiled is None and is_bounded:
            raise TooMuch
        if compiled is None:
            return lambda: self._ask_queryset(source_pks)
        cursor = compiled.execute(source_pks, room=room)

        def texts() -> Loaded:
            code = UserCode(using=self.using, only_values=not self.spec.needs_instances)
            try:
                with code.reading(), cursor:
                    found = list(compiled.rows(self.spec, cursor.fetchall()))
            except faults.Unreadable:
                return self._ask_queryset(source_pks)
            if is_bounded and not found:
                raise TooMuch
            return made(self.spec, found, {}, using=self.using, seconds=MADE_SECONDS)

        return texts

    def _ask_queryset(self, source_pks: Sequence[str]) -> Loaded:
        return give_way_and_load(self.spec, source_pks, using=self.using, seconds=MADE_SECONDS)


def _fits(total: models.Subquery) -> models.Func:
    return models.Func(
        total,
        models.Value(ROOM),
        arg_joiner=" <= ",
        template="%(expressions)s",
        output_field=models.BooleanField(),
    )
