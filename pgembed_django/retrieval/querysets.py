"""A queryset and a manager for ``Article.objects.filter(...).search("...")``."""

from __future__ import annotations

from typing import TypeVar

from django.db.models import Manager, Model, QuerySet

from pgembed_django.retrieval import searching, similar
from pgembed_django.retrieval.results import Mode, Results

Row = TypeVar("Row", bound=Model)


class SearchQuerySet(QuerySet[Row]):
    """A queryset with search methods. They take the same keywords as the functions."""

    def search(
        self,
        text: str,
        *,
        limit: int = 10,
        offset: int = 0,
        mode: Mode = "hybrid",
        name: str | None = None,
    ) -> Results[Row]:
        """Return the rows of this queryset that match ``text`` best."""
        return searching.search(self, text, limit=limit, offset=offset, mode=mode, name=name)

    async def asearch(
        self,
        text: str,
        *,
        limit: int = 10,
        offset: int = 0,
        mode: Mode = "hybrid",
        name: str | None = None,
    ) -> Results[Row]:
        """Search like ``search``, without blocking the event loop."""
        return await searching.asearch(self, text, limit=limit, offset=offset, mode=mode, name=name)

    def similar_to(
        self, instance: Row, *, limit: int = 10, offset: int = 0, name: str | None = None
    ) -> Results[Row]:
        """Return the rows of this queryset nearest to ``instance``."""
        return similar.similar_to(instance, limit=limit, offset=offset, among=self, name=name)

    async def asimilar_to(
        self, instance: Row, *, limit: int = 10, offset: int = 0, name: str | None = None
    ) -> Results[Row]:
        """Find like ``similar_to``, without blocking the event loop."""
        return await similar.asimilar_to(
            instance, limit=limit, offset=offset, among=self, name=name
        )


SearchManager = Manager.from_queryset(SearchQuerySet)
"""A manager with the methods of ``SearchQuerySet``: ``objects = SearchManager()``."""
