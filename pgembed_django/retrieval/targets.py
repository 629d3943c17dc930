"""Check that a model or queryset can be searched: it is embeddable, and can be ranked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db.models import Manager, Model, QuerySet
from django.db.models.query import ModelIterable

from pgembed_django.core import postgres
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.exceptions import SearchError

MOST_RESULTS = 1000
"""The largest ``offset + limit``. Nobody reads further, and an export needs no search."""

Row = TypeVar("Row", bound=Model)
Where = type[Row] | QuerySet[Row] | Manager[Row]


class Statement(NamedTuple):
    """A statement, and its parameters by name."""

    text: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Target(Generic[Row]):
    """The rows that may be found, and the spec whose chunks are searched."""

    queryset: QuerySet[Row]
    spec: Spec

    @property
    def using(self) -> str:
        return self.queryset.db

    @property
    def table(self) -> str:
        """The quoted name of the table that holds the chunks."""
        return postgres.quoted_table(self.spec.embedding_model)

    @cached_property
    def rows(self) -> QuerySet[Row]:
        """The rows of the queryset that fit the spec's condition, unordered."""
        rows = self.queryset.order_by()
        return rows.filter(self.spec.when) if self.spec.when else rows

    @property
    def keys(self) -> QuerySet[Row, Any]:
        """The primary keys of the rows that may be ranked, for a subquery."""
        keys = self.rows.values("pk")
        keys.query.select_for_update = False
        return keys

    def keys_statement(self) -> Statement:
        """Return the statement that selects these keys.

        Raises:
            EmptyResultSet: the queryset cannot have any rows.
        """
        text, values = self.keys.query.get_compiler(self.using).as_sql()
        parameters = {f"key_{number}": value for number, value in enumerate(values)}
        names = iter(parameters)
        # Name the parameters, as in all our statements. %% is a literal % in the query.
        named = re.sub(
            "%%|%s", lambda found: "%%" if found[0] == "%%" else f"%({next(names)})s", text
        )
        return Statement(named, parameters)

    def hides(self, keys: Sequence[Any]) -> bool:
        """Return whether any of these rows is not in the queryset, or hidden from the role."""
        return bool(keys) and self.keys.filter(pk__in=keys).distinct().count() < len(keys)

    @property
    def narrows(self) -> bool:
        """Whether the queryset, or the spec's condition, may leave out rows that have vectors.

        Triggers see to a condition over the row's own columns. Of any other, or if changes are read
        from the log, vectors may be left until a worker has removed them. So the rows themselves
        are looked at before they are ranked.
        """
        query = self.queryset.query
        is_whole_table = (
            self.queryset.model._meta.concrete_model is self.spec.model._meta.concrete_model
        )
        return (
            bool(query.where)
            or bool(query.extra_tables)
            or not is_whole_table
            or self.spec.when_spans_tables
            or self.spec.is_read_from_log
        )


def of(where: Where[Row], *, name: str | None) -> Target[Row]:
    """Return the target for a model, its manager or a queryset of it.

    Raises:
        SearchError: the queryset cannot be ranked, or the model has several specs and no ``name``
            chooses one.
        ImproperlyConfigured: the model is not embeddable, or has no spec of that name, or the
            database is not PostgreSQL.
    """
    queryset = _queryset(where)
    # Fix the alias: a router that is asked again may choose another replica.
    queryset = queryset.using(queryset.db)
    if other := postgres.not_postgres(queryset.db, remedy="using"):
        raise ImproperlyConfigured(other)
    return Target(queryset, spec_of(queryset.model, name=name))


def spec_of(model: type[Model], *, name: str | None) -> Spec:
    """Return the spec to search a model by.

    Raises:
        SearchError: the model has several specs, and no ``name`` chooses one.
        ImproperlyConfigured: the model is not embeddable, or has no spec of that name.
    """
    found = specs.of(model, name=name)
    if name is None and len(found) > 1:
        names = ", ".join(spec.name for spec in found)
        raise SearchError(
            f"{model.__name__} is decorated {len(found)} times. Choose with name=, one of: {names}."
        )
    return found[0]


def of_several(where: Where[Any] | Sequence[Where[Any]], *, name: str | None) -> list[Target[Any]]:
    """Return the targets of a search, one per model."""
    if isinstance(where, type | QuerySet | Manager | str) or not isinstance(where, Sequence):
        return [of(where, name=name)]
    if not where:
        raise SearchError("There is nothing to search in: the list is empty. Give a model.")
    if name is not None and len(where) > 1:
        raise SearchError(f"name is {name!r}, but there are several models. Search each alone.")
    targets = [of(one, name=name) for one in where]
    keys = [target.spec.key for target in targets]
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise SearchError(
            f"{', '.join(sorted(twice))} is given twice. Combine the conditions with Q objects."
        )
    return targets


def check_page(limit: int, offset: int) -> None:
    """Raise ``SearchError`` if ``limit`` or ``offset`` is out of range."""
    if not _is_whole(limit) or not 1 <= limit <= MOST_RESULTS:
        raise SearchError(f"limit is {limit!r}. Give a whole number from 1 to {MOST_RESULTS}.")
    if not _is_whole(offset) or not 0 <= offset <= MOST_RESULTS - limit:
        raise SearchError(
            f"offset is {offset!r}. Give a whole number from 0 to {MOST_RESULTS - limit}: "
            f"with a limit of {limit} it reaches {MOST_RESULTS} results."
        )


def check_similarity(least: float | None) -> None:
    """Raise ``SearchError`` if the least similarity is no cosine. None: there is none."""
    is_number = isinstance(least, int | float) and not isinstance(least, bool)
    if least is not None and not (is_number and -1 <= least <= 1):
        raise SearchError(
            f"min_similarity is {least!r}. Give a cosine: a number from -1 to 1, or None."
        )


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _queryset(where: Where[Row]) -> QuerySet[Row]:
    """Return the queryset to search. Raises ``SearchError`` if it cannot be ranked."""
    if isinstance(where, type) and issubclass(where, Model):
        if where._meta.abstract:
            raise SearchError(
                f"Cannot search in {where.__name__}: it is abstract, and has no rows."
            )
        return where._default_manager.all()
    queryset = where.all() if isinstance(where, Manager) else where
    if not isinstance(queryset, QuerySet):
        raise SearchError(f"Cannot search in {where!r}. Give a model or a queryset of one.")
    if queryset.query.is_sliced:
        raise SearchError("Cannot search in a sliced queryset. Filter it, and use limit=.")
    if queryset.query.combinator:
        raise SearchError(
            f"Cannot search in a queryset combined by {queryset.query.combinator}(). "
            "Combine its conditions with Q objects."
        )
    if queryset.query.distinct_fields:
        raise SearchError(
            "Cannot search in a queryset with distinct(*fields): its order chooses its rows. "
            "Each row is found once anyway."
        )
    if not issubclass(queryset._iterable_class, ModelIterable):  # noqa: SLF001
        raise SearchError(
            "Cannot search in a queryset of values(). Leave values() out: results are instances."
        )
    query = queryset.query
    expressions: list[Any] = [query.where, *query.annotations.values()]
    if any(expression.contains_over_clause for expression in expressions):
        # Django would apply a search's own conditions before the window is computed.
        raise SearchError(
            "Cannot search in a queryset with window functions. Select its rows by key instead: "
            'filter(pk__in=that.values("pk")).'
        )
    return queryset
