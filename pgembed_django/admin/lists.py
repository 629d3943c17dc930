"""The base of our admin pages. They are read-only, and never count or sort a whole table."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, QueryDict

from pgembed_django.models.shown import shown_database

Row = TypeVar("Row", bound=Model)

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Row]
    AnyPaginator = Paginator[Any]
else:
    from typing import Generic

    class ModelAdmin(Generic[Row], admin.ModelAdmin):
        """Takes a type argument, which Django's own does not."""

    AnyPaginator = Paginator

MAX_COUNT = 10_000


class BoundedPaginator(AnyPaginator):
    """Counts and pages up to ``MAX_COUNT`` rows, and knows whether there are more."""

    @cached_property
    def _counted(self) -> int:
        rows: Any = self.object_list
        return int(rows[: MAX_COUNT + 1].count())

    @cached_property
    def count(self) -> int:
        """How many rows can be paged to."""
        return min(self._counted, MAX_COUNT)

    @property
    def is_bounded(self) -> bool:
        """Whether there are more rows than were counted."""
        return self._counted > MAX_COUNT


class ReadOnlyList(ChangeList):
    """A page of rows. Refuses a value with a NUL as Django refuses other impossible values."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        """Return the rows that are listed."""
        if has_nul(request.GET, but=SEARCH_VAR):
            raise IncorrectLookupParameters
        return super().get_queryset(request, *args, **kwargs)


class ReadOnlyAdmin(ModelAdmin[Row]):
    """Shows rows read-only, from the database that is written to."""

    actions: Any = ()
    list_per_page = 50
    paginator = BoundedPaginator
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    # Sorting by a column without an index would sort the whole table.
    sortable_by = ()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the class of the list."""
        return ReadOnlyList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Row]:
        """Return the rows from the database that is written to, not from a replica."""
        return super().get_queryset(request).using(shown_database())

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: nobody adds rows by hand."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: nobody edits rows by hand."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: nobody deletes rows by hand."""
        return False


def has_nul(given: QueryDict, *, but: str = "") -> bool:
    """Return whether any value but ``but``'s has a NUL, which no text in Postgres can hold."""
    return any("\0" in value for name, values in given.lists() if name != but for value in values)
