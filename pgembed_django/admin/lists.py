"""What our admin lists share: read-only, bounded, never sorted whole. And spaces and workers."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest
from django.utils.translation import gettext_lazy

from pgembed_django.models import Space, Worker
from pgembed_django.models.job import shown_database

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
    """Counts and pages up to ``MAX_COUNT`` rows, however large the table is."""

    @cached_property
    def count(self) -> int:
        """How many rows can be paged to."""
        rows: Any = self.object_list
        return int(rows[:MAX_COUNT].count())


class ReadOnlyAdmin(ModelAdmin[Row]):
    """Shows rows read-only, from the database that is written to."""

    actions: Any = ()
    list_per_page = 50
    paginator = BoundedPaginator
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    # Sorting by a column without an index would sort the whole table.
    sortable_by = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Row]:
        """Return the rows from the database that is written to, not from a replica."""
        # No text in Postgres can hold a NUL: a query with one would be an error.
        if any("\0" in value for values in request.GET.lists() for value in values[1]):
            raise Http404
        return super().get_queryset(request).using(shown_database())

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: nobody adds, edits or deletes rows by hand."""
        return False

    has_change_permission = has_delete_permission = has_add_permission


class SpaceAdmin(ReadOnlyAdmin[Space]):
    """Shows which space is searched, which is being built, and the model of each.

    Of secrets, a space's options have only the names of environment variables.
    """

    list_display = (
        "spec",
        "id",
        "state",
        "model",
        "dimensions",
        "provider",
        "created_at",
        "activated_at",
        "retired_at",
    )
    list_filter = ("state",)
    ordering = ("-id",)
    readonly_fields = ("id",)


class WorkerAdmin(ReadOnlyAdmin[Worker]):
    """Shows the workers that are alive or died recently."""

    list_display = (
        "__str__",
        "id",
        "last_seen_at",
        "holds",
        "paused",
        "aside",
        "started_at",
        "version",
        "takes",
    )
    ordering = ("-last_seen_at", "-id")
    readonly_fields = ("id",)

    @admin.display(description=gettext_lazy("specs and queues"))
    def takes(self, worker: Worker) -> str:
        """The specs and queues that it works on."""
        return ", ".join(worker.specs)
