"""For those who like ``Article.objects.filter(...).search("...")``."""

from __future__ import annotations

from typing import Any, TypeVar

from django.db.models import Manager, Model, QuerySet

from pgembed_django.retrieval.results import Results

Row = TypeVar("Row", bound=Model)


class SearchQuerySet(QuerySet[Row]):
    """A queryset that is searched as it stands: it takes the keywords of ``search``."""

    def search(self, text: str, **keywords: Any) -> Results[Row]:
        from pgembed_django.retrieval.searching import search

        return search(self, text, **keywords)

    async def asearch(self, text: str, **keywords: Any) -> Results[Row]:
        from pgembed_django.retrieval.searching import asearch

        return await asearch(self, text, **keywords)

    def similar_to(self, instance: Row, **keywords: Any) -> Results[Row]:
        """Return the rows of this queryset nearest to ``instance``."""
        from pgembed_django.retrieval.similar import similar_to

        return similar_to(instance, among=self, **keywords)

    async def asimilar_to(self, instance: Row, **keywords: Any) -> Results[Row]:
        from pgembed_django.retrieval.similar import asimilar_to

        return await asimilar_to(instance, among=self, **keywords)


SearchManager = Manager.from_queryset(SearchQuerySet)
"""A manager with the methods of ``SearchQuerySet``: ``objects = SearchManager()``."""
