"""What the lists of jobs and of tasks share: filters, columns, actions and history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from pgembed_django.admin import lists, overview
from pgembed_django.admin.actions import Action, Row
from pgembed_django.models import Attempt, Job
from pgembed_django.models.job import DISMISSED, OPEN_FAILURE, PENDING, RUNNING

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

ERROR_CHARACTERS = 100
HISTORY_LENGTH = 30


class Status(NamedTuple):
    """A choice of the status filter, with the ordering of the partial index for its rows."""

    title: _StrPromise
    condition: Q
    ordering: tuple[str, ...] = ("-id",)


STATUSES = {
    "failed": Status(gettext_lazy("Failed"), OPEN_FAILURE, ("-finished_at", "-id")),
    "pending": Status(gettext_lazy("Pending"), PENDING),
    "running": Status(gettext_lazy("Running"), RUNNING),
    "succeeded": Status(gettext_lazy("Succeeded"), Q(status=Job.Status.SUCCEEDED)),
    "dismissed": Status(gettext_lazy("Dismissed"), DISMISSED),
    "settled": Status(gettext_lazy("Failed, settled since"), Q(settled_at__isnull=False)),
}


class StatusFilter(admin.SimpleListFilter):
    """By status. Failures that were retried, dismissed or overtaken are not listed as failed."""

    title = gettext_lazy("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, Any]]:
        """Return the choices."""
        return [(name, status.title) for name, status in STATUSES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the jobs of the chosen status."""
        status = STATUSES.get(self.value() or "")
        return queryset.filter(status.condition) if status else queryset


class LinkedFilter(admin.SimpleListFilter):
    """A filter that only links set. It is shown only while set, so that it can be removed.

    Its choices do not come from a query: DISTINCT would read all jobs.
    """

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, Any]]:
        """Return the value that is set, if any."""
        value = request.GET.get(self.parameter_name or "")
        return [(value, Truncator(value).chars(60))] if value else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the jobs with this value."""
        try:
            value = self.value()
            return queryset.filter(**{str(self.parameter_name): value}) if value else queryset
        except ValueError as error:  # no number
            raise IncorrectLookupParameters from error


class SignatureFilter(LinkedFilter):
    """Failures of one kind."""

    title = gettext_lazy("kind of error")
    parameter_name = "signature"


class WorkerFilter(LinkedFilter):
    """Jobs that one worker holds."""

    title = gettext_lazy("worker")
    parameter_name = "worker_id"


class TriageAdmin(lists.ReadOnlyAdmin[lists.Row]):
    """Lists jobs or tasks, newest first. Failures are ordered by when they failed."""

    verbs: ClassVar[Mapping[str, Action]]
    """The actions, by their names."""
    parked: ClassVar[_StrPromise] = gettext_lazy("%(status)s, parked until %(at)s")

    class Media:
        css = {"all": ["pgembed/admin.css"]}

    def unit_of(self, row: Any) -> tuple[str, str]:
        """Return what the attempts at a row are known by."""
        raise NotImplementedError

    def detail(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Return what the page of a row has beside what is common to all."""
        return {}

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of Django's pages, and of our own."""
        own = {
            "failures/": ("failures", overview.failures),
            "operate/<slug:verb>/": ("operate", overview.press),
        }
        return [
            path(route, self.wrapped(view), name=f"pgembed_{self.opts.model_name}_{name}")
            for route, (name, view) in own.items()
        ] + super().get_urls()

    def wrapped(self, view: Any) -> Any:
        """Return a view of our own as one of the admin site."""

        def wrapped(request: HttpRequest, **kwargs: Any) -> HttpResponse:
            self.get_queryset(request)  # refuses what no text in Postgres can hold
            request.current_app = self.admin_site.name
            response: HttpResponse = view(self, request, **kwargs)
            return response

        return self.admin_site.admin_view(wrapped)

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the order for which the chosen status has an index."""
        status = STATUSES.get(request.GET.get("status", ""))
        return status.ordering if status else ("-id",)

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may retry failures."""
        return self.verbs["retry"].is_allowed(request)

    def has_dismiss_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may dismiss failures."""
        return self.verbs["dismiss"].is_allowed(request)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may pause, resume and release, and what else operators do."""
        return self.verbs["release"].is_allowed(request)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the history, and the actions that apply to this row."""
        row: Any = context["original"]
        rows = self.get_queryset(request)
        spec, source_pk = self.unit_of(row)
        attempts = Attempt.objects.using(rows.db).filter(spec=spec, source_pk=source_pk)
        context |= {
            # The same conditions as in the list, decided by the database.
            "row_actions": [
                (name, action.title)
                for name, action in self.verbs.items()
                if action.is_allowed(request) and rows.filter(action.condition, pk=row.pk).exists()
            ],
            "attempts": attempts.order_by("-id")[:HISTORY_LENGTH],
            "spec": spec,
            **self.detail(request, row),
        }
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description=gettext_lazy("status"))
    def state(self, job: Row) -> str:
        """The status, with its details in words."""
        status = job.get_status_display()
        is_later = job.run_at > timezone.now()
        if job.settled_at is not None:
            return _("%s, settled since") % status
        if job.status == Job.Status.RUNNING and job.items_total:
            return f"{status}, {job.items_done:,} / {job.items_total:,}"
        if job.status in (Job.Status.DISMISSED, Job.Status.FAILED) and is_later:
            return self.parked % {"status": status, "at": _at(job)}
        if job.status == Job.Status.PENDING and is_later:
            return _("%(status)s, not before %(at)s") % {"status": status, "at": _at(job)}
        return status

    @admin.display(description=gettext_lazy("last error"))
    def error(self, job: Row) -> SafeString | str:
        """The beginning of the error."""
        shown = Truncator(job.last_error).chars(ERROR_CHARACTERS)
        return shown and format_html('<div class="pgembed-beginning">{}</div>', shown)

    @admin.display(description=gettext_lazy("last error"))
    def full_error(self, job: Row) -> SafeString | str:
        """The error as it is stored."""
        if not job.last_error:
            return self.get_empty_value_display()
        return format_html('<pre class="pgembed-error">{}</pre>', job.last_error)


def _at(job: Row) -> str:
    at = job.run_at
    local = timezone.localtime(at) if timezone.is_aware(at) else at
    return date_format(local, "SHORT_DATETIME_FORMAT")
