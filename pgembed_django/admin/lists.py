"""What our admin lists share: read-only, never counted or sorted whole; the job list's filters.

With the two that need no more: the pages of spaces and of workers.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, QueryDict
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from pgembed_django import specs
from pgembed_django.models import Job, Space, Worker
from pgembed_django.models.job import DISMISSED, OPEN_FAILURE, PENDING, RUNNING
from pgembed_django.models.shown import shown_database

Row = TypeVar("Row", bound=Model)

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

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


# The filters of the job list. Their choices come from code, not from a query.


class Status(NamedTuple):
    """A choice of the status filter, with the ordering of the partial index for its rows."""

    title: _StrPromise
    condition: Q
    ordering: tuple[str, ...] = ("-id",)


STATUSES = {
    "failed": Status(_("Failed"), OPEN_FAILURE, ("-finished_at", "-id")),
    "pending": Status(_("Pending"), PENDING),
    "running": Status(_("Running"), RUNNING),
    "succeeded": Status(_("Succeeded"), Q(status=Job.Status.SUCCEEDED)),
    "dismissed": Status(_("Dismissed"), DISMISSED),
    "settled": Status(_("Failed, settled since"), Q(settled_at__isnull=False)),
}


class StatusFilter(admin.SimpleListFilter):
    """By status. Failures that were retried, dismissed or overtaken are not listed as failed."""

    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, _StrPromise]]:
        """Return the choices."""
        return [(name, status.title) for name, status in STATUSES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the jobs of the chosen status."""
        status = STATUSES.get(self.value() or "")
        return queryset.filter(status.condition) if status else queryset


class LinkedFilter(admin.SimpleListFilter):
    """A filter that only links set. It is shown only while set, so that it can be removed."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the value that is set, if any."""
        value = request.GET.get(self.parameter_name or "")
        return [(value, Truncator(value).chars(60))] if value else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the jobs with this value."""
        value = self.value()
        return queryset.filter(**{str(self.parameter_name): value}) if value else queryset


class SignatureFilter(LinkedFilter):
    """Failures of one kind."""

    title = _("kind of error")
    parameter_name = "signature"


class SpecFilter(LinkedFilter):
    """By spec: the declared ones, and the one that is set."""

    title = _("spec")
    parameter_name = "spec"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the specs."""
        declared = [(spec.key, spec.key) for spec in specs.all()]
        linked = super().lookups(request, model_admin)
        return declared + [one for one in linked if specs.get(one[0]) is None]


class WorkerFilter(LinkedFilter):
    """Jobs that one worker holds."""

    title = _("worker")
    parameter_name = "worker"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the running jobs of the worker. What is not a number holds none."""
        try:
            return queryset.filter(RUNNING, worker_id=int(self.value() or ""))
        except ValueError:
            return queryset.none()


def unit(term: str) -> Q:
    """Return the condition for a spec, a key or both: exact, so that an index can be used."""
    term = term.strip()
    if not term:
        return Q()
    spec, _space, source_pk = term.partition(" ")
    return Q(spec=spec, source_pk=source_pk.strip()) | Q(source_pk=term) | Q(spec=term)


class SpaceAdmin(ReadOnlyAdmin[Space]):
    """Shows which space is searched, which is being built, and the model of each."""

    list_display = (
        "spec",
        "number",
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
    fieldsets: ClassVar[Any] = (
        (None, {"fields": (("spec", "number", "state", "is_partial"),)}),
        (_("Times"), {"fields": (("created_at", "activated_at", "retired_at", "pruned_at"),)}),
        (
            _("Model"),
            {"fields": ("provider", "backend", "model", "model_digest", "dimensions")},
        ),
        (_("Recognized"), {"fields": ("model_facts", "canary_at", "exchanged", "exchanged_at")}),
        (_("Text"), {"fields": ("document_prefix", "query_prefix")}),
        (_("Identity"), {"fields": ("fingerprint", "options_text")}),
    )

    @admin.display(description=_("number"))
    def number(self, space: Space) -> str:
        """The number by which `embed_spaces` knows it."""
        return str(space.pk)

    @admin.display(description=_("options"))
    def options_text(self, space: Space) -> SafeString:
        """The provider's options. Secrets appear only as names of environment variables."""
        text = json.dumps(space.options, indent=2, sort_keys=True, ensure_ascii=False)
        return format_html("<pre>{}</pre>", text)


class WorkerAdmin(ReadOnlyAdmin[Worker]):
    """Shows the workers that are alive or died recently."""

    list_display = (
        "worker",
        "id",
        "last_seen_at",
        "holds",
        "paused_providers",
        "set_aside",
        "started_at",
        "version",
        "spec_keys",
    )
    ordering = ("-last_seen_at", "-id")
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("worker", "id", "version", "started_at", "last_seen_at")}),
        (_("Work"), {"fields": ("holds", "paused_providers", "set_aside", "spec_keys")}),
    )

    @admin.display(description=_("worker"))
    def worker(self, worker: Worker) -> str:
        """Host and process id."""
        return str(worker)

    @admin.display(description=_("paused providers"))
    def paused_providers(self, worker: Worker) -> SafeString:
        """The providers that the worker has paused, each with the reason."""
        return format_html_join("; ", "{}: {}", worker.paused.items())

    @admin.display(description=_("specs set aside"))
    def set_aside(self, worker: Worker) -> SafeString:
        """The specs that the worker has set aside, each with the reason."""
        return format_html_join("; ", "{}: {}", worker.aside.items())

    @admin.display(description=_("specs"))
    def spec_keys(self, worker: Worker) -> str:
        """The specs that the worker works on."""
        return ", ".join(worker.specs)
