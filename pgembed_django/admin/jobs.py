"""The job list with its filters, and the page of one job with its history. Edits nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote
from django.contrib.auth import get_permission_codename
from django.db import DataError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from pgembed_django import sources
from pgembed_django.admin import lists, overview
from pgembed_django.admin.actions import ACTIONS, for_list, reembed_rows
from pgembed_django.declaration import specs
from pgembed_django.models import Attempt, Job
from pgembed_django.models.job import DISMISSED, OPEN_FAILURE, PENDING, RUNNING

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

ERROR_CHARACTERS = 100
HISTORY_LENGTH = 30
TEXT_CHARACTERS = 500


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


class SpecFilter(LinkedFilter):
    """By spec: the declared ones, and the one that is set."""

    title = gettext_lazy("spec")
    parameter_name = "spec"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, Any]]:
        """Return the specs."""
        linked = super().lookups(request, model_admin)
        return list(dict([(spec.key, spec.key) for spec in specs.all()] + [*linked]).items())


class JobAdmin(lists.ReadOnlyAdmin[Job]):
    """Lists jobs, newest first. Failures are ordered by when they failed."""

    actions = [for_list(name) for name in ACTIONS]
    # A screen has room for about four columns.
    list_display = (
        "__str__",
        "error",
        "state",
        "finished_at",
        "attempts",
        "crashes",
        "source_row",
        "worker_id",
        "created_at",
        "kind",
    )
    list_filter = (StatusFilter, SpecFilter, SignatureFilter, WorkerFilter)
    search_fields = ("source_pk",)
    search_help_text = gettext_lazy(
        "A row's key, a spec, or both: blog.ArticleEmbedding 17. At most 10,000 jobs are counted "
        "and listed."
    )
    fieldsets: ClassVar[Any] = (
        (None, {"fields": (("state", "source_row", "kind"), "full_error")}),
        (
            gettext_lazy("Attempts"),
            {
                "fields": (
                    ("attempts", "crashes", "outages", "claims"),
                    ("parkings", "items_done", "items_total"),
                )
            },
        ),
        (
            gettext_lazy("Times"),
            {
                "classes": ["collapse"],
                "fields": (("created_at", "started_at", "finished_at"), ("settled_at", "run_at")),
            },
        ),
        (
            gettext_lazy("Queue"),
            {"classes": ["collapse"], "fields": (("priority", "worker_id", "lease_expires_at"),)},
        ),
    )

    class Media:
        css = {"all": ["pgembed/admin.css"]}

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of Django's pages, and of our own."""
        own = {
            "failures/": ("failures", overview.failures),
            "rows/": ("rows", reembed_rows),
            "operate/<slug:verb>/": ("operate", overview.press),
        }
        return [
            path(route, self._wrapped(view), name=f"pgembed_job_{name}")
            for route, (name, view) in own.items()
        ] + super().get_urls()

    def _wrapped(self, view: Any) -> Any:
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

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Find units by their exact spec, key or both, so that an index can be used."""
        if term := search_term.strip():
            spec, _space, source_pk = term.partition(" ")
            unit = Q(spec=spec, source_pk=source_pk.strip())
            queryset = queryset.filter(unit | Q(source_pk=term) | Q(spec=term))
        return queryset, False

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may retry failed units."""
        return ACTIONS["retry"].is_allowed(request)

    def has_dismiss_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may dismiss failures."""
        return ACTIONS["dismiss"].is_allowed(request)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may re-embed, pause, resume, release and probe."""
        return ACTIONS["release"].is_allowed(request)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the history, the text, and the actions that apply to this job."""
        job: Job = context["original"]
        rows = self.get_queryset(request)
        attempts = Attempt.objects.using(rows.db).filter(spec=job.spec, source_pk=job.source_pk)
        text = _text(job, using=rows.db) if self._may_see_row(request, job) else None
        context |= {
            # The same conditions as in the list, decided by the database.
            "job_actions": [
                (name, action.title)
                for name, action in ACTIONS.items()
                if action.is_allowed(request) and rows.filter(action.condition, pk=job.pk).exists()
            ],
            "attempts": attempts.order_by("-id")[:HISTORY_LENGTH],
            "text": text,
            "text_beginning": Truncator(text or "").chars(TEXT_CHARACTERS),
        }
        return super().render_change_form(request, context, *args, **kwargs)

    def _may_see_row(self, request: HttpRequest, job: Job) -> bool:
        """Return whether the viewer may see the row: by its admin page, or else by permissions."""
        for model in _models(job):
            if self.admin_site.is_registered(model):
                page = self.admin_site.get_model_admin(model)
                row = page.get_object(request, job.source_pk)
                return row is not None and page.has_view_permission(request, row)
        return any(
            request.user.has_perm(
                f"{model._meta.app_label}.{get_permission_codename(name, model._meta)}"
            )
            for model in _models(job)
            for name in ("view", "change")
        )

    @admin.display(description=gettext_lazy("status"))
    def state(self, job: Job) -> str:
        """The status, with its details in words."""
        status = job.get_status_display()
        is_later = job.run_at > timezone.now()
        if job.settled_at is not None:
            return _("%s, settled since") % status
        if job.status == Job.Status.RUNNING and job.items_total:
            return f"{status}, {job.items_done:,} / {job.items_total:,}"
        if job.status in (Job.Status.DISMISSED, Job.Status.FAILED) and is_later:
            return _("%(status)s, parked until %(at)s") % {"status": status, "at": _at(job)}
        if job.status == Job.Status.PENDING and is_later:
            return _("%(status)s, not before %(at)s") % {"status": status, "at": _at(job)}
        return status

    @admin.display(description=gettext_lazy("last error"))
    def error(self, job: Job) -> SafeString | str:
        """The beginning of the error."""
        shown = Truncator(job.last_error).chars(ERROR_CHARACTERS)
        return shown and format_html('<div class="pgembed-beginning">{}</div>', shown)

    @admin.display(description=gettext_lazy("last error"))
    def full_error(self, job: Job) -> SafeString | str:
        """The error as it is stored."""
        return job.last_error and format_html('<pre class="pgembed-error">{}</pre>', job.last_error)

    @admin.display(description=gettext_lazy("source row"))
    def source_row(self, job: Job) -> SafeString | str:
        """A link to the row's page, which checks the permission, as for a foreign key.

        The row is not loaded: a list of fifty jobs takes one query, and no text is shown.
        """
        for model in _models(job):
            if self.admin_site.is_registered(model):
                name = f"{model._meta.app_label}_{model._meta.model_name}_change"
                try:
                    url = reverse(f"{self.admin_site.name}:{name}", args=[quote(job.source_pk)])
                except NoReverseMatch:  # an admin without that page, or an empty key
                    return "-"
                title = f"{model._meta.verbose_name} {job.source_pk}"
                return format_html('<a href="{}">{}</a>', url, title)
        return "-"


def _models(job: Job) -> Sequence[Any]:
    """Return the models of which the row's page may be: the spec's, or what it is a proxy of."""
    spec = specs.get(job.spec)
    return () if spec is None else (spec.model, spec.model._meta.concrete_model)


def _text(job: Job, *, using: str) -> str:
    """Return the row's text as it would be embedded, or why there is none."""
    spec = specs.get(job.spec)
    if spec is None:
        return ""
    try:
        loaded = sources.load(spec, [job.source_pk], using=using)
    except DataError:
        return ""  # not a valid key of this table: there is no row
    return loaded.texts.get(job.source_pk) or loaded.errors.get(job.source_pk, "")


def _at(job: Job) -> str:
    at = job.run_at
    local = timezone.localtime(at) if timezone.is_aware(at) else at
    return date_format(local, "SHORT_DATETIME_FORMAT")
