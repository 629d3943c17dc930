"""The job list and the page of one job, with actions. Fields are read-only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from pgembed_django.admin import actions, lists, overview, source_rows, views
from pgembed_django.models import Attempt, Job

ERROR_CHARACTERS = 100
HISTORY_LENGTH = 30
TEXT_CHARACTERS = 500


def _for_selection(name: str, action: actions.Action) -> Any:
    def act(model_admin: JobAdmin, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return views.act_on_selected(model_admin, request, name, queryset)

    act.__name__ = name
    return admin.action(act, permissions=[action.permission], description=action.selected)


FOR_SELECTION = [_for_selection(*one) for one in actions.ACTIONS.items()]


class JobAdmin(lists.ReadOnlyAdmin[Job]):
    """Lists jobs, newest first. Failures are ordered by when they failed."""

    actions = FOR_SELECTION
    list_filter = (
        lists.StatusFilter,
        lists.SpecFilter,
        lists.SignatureFilter,
        lists.WorkerFilter,
    )
    search_fields = ("source_pk",)
    search_help_text = gettext_lazy("A row's key, a spec, or both: blog.ArticleEmbedding 17")

    class Media:
        css = {"all": ["pgembed/admin.css"]}

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of Django's pages, and of our own."""
        own = {
            "failures/": ("failures", overview.failures),
            "all/<slug:name>/": ("all", views.act_on_all),
            "rows/": ("rows", views.reembed_rows),
            "operate/<slug:verb>/": ("operate", views.press),
        }
        return [
            path(route, self._wrapped(view), name=f"pgembed_job_{name}")
            for route, (name, view) in own.items()
        ] + super().get_urls()

    def _wrapped(self, view: Any) -> Any:
        def wrapped(request: HttpRequest, **kwargs: Any) -> HttpResponse:
            if lists.has_nul(request.GET) or lists.has_nul(request.POST):
                raise Http404
            response: HttpResponse = view(self, request, **kwargs)
            return response

        return self.admin_site.admin_view(wrapped)

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns. The link to the source row depends on the viewer."""
        # A screen has room for about five columns. Columns that are the same in each row of a
        # filtered list come last.
        rest = (self.source_row(request), "attempts", "crashes", "worker")
        if request.GET.get("signature"):
            return ("unit", "finished", *rest, "state", "error")
        if request.GET.get("status") in {"failed", "dismissed"}:
            return ("unit", "error", "finished", *rest, "state")
        return ("unit", "state", "created", "finished", "error", *rest, "kind")

    def get_fieldsets(self, request: HttpRequest, obj: Job | None = None) -> Any:
        """Return the fieldsets of one job's page, with what an operator needs first."""
        first = ("state", self.source_row(request), "size", "kind")
        attempts = (
            ("attempts", "crashes", "outages", "claims"),
            ("parkings", "items_done", "items_total"),
        )
        times = (("created_at", "started_at", "finished_at"), ("settled_at", "run_at"))
        return (
            (None, {"fields": (first, "full_error")}),
            (_("History"), {"fields": ("history",)}),
            (_("Attempts"), {"fields": attempts}),
            (_("Times"), {"fields": times}),
            (_("Queue"), {"fields": (("priority", "worker", "lease_expires_at"),)}),
            (_("Text"), {"fields": (self.source_text(request),)}),
        )

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the order for which the chosen status has an index."""
        status = lists.STATUSES.get(request.GET.get("status", ""))
        return status.ordering if status else ("-id",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Find units by their exact spec and key, not by parts of them."""
        return queryset.filter(lists.unit(search_term)), False

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may retry failed units."""
        return actions.ACTIONS["retry"].is_allowed(request)

    def has_dismiss_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may dismiss failures."""
        return actions.ACTIONS["dismiss"].is_allowed(request)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may re-embed, pause, resume, release and probe."""
        return actions.ACTIONS["release"].is_allowed(request)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the buttons that apply to this job and that the viewer may use."""
        job: Job = context["original"]
        # The same conditions as in the list, decided by the database.
        found = Job.objects.using(actions.database()).filter(pk=job.pk)
        context["job_actions"] = [
            (name, action.title)
            for name, action in actions.ACTIONS.items()
            if action.is_allowed(request) and found.filter(action.condition).exists()
        ]
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description=gettext_lazy("unit"))
    def unit(self, job: Job) -> str:
        """The spec and the key of the source row."""
        return str(job)

    @admin.display(description=gettext_lazy("status"))
    def state(self, job: Job) -> str:
        """The status, with its details in words."""
        status = job.get_status_display()
        if job.settled_at is not None:
            return _("%s, settled since") % status
        named = {"status": status, "at": _at(job.run_at)}
        if job.status in (Job.Status.DISMISSED, Job.Status.FAILED):
            is_parked = job.run_at > timezone.now()
            return _("%(status)s, parked until %(at)s") % named if is_parked else status
        if job.status == Job.Status.PENDING and job.run_at > timezone.now():
            return _("%(status)s, not before %(at)s") % named
        return status

    @admin.display(description=gettext_lazy("last error"))
    def error(self, job: Job) -> SafeString | str:
        """The beginning of the error."""
        shown = Truncator(job.last_error).chars(ERROR_CHARACTERS)
        return shown and format_html('<div class="pgembed-beginning">{}</div>', shown)

    @admin.display(description=gettext_lazy("last error"))
    def full_error(self, job: Job) -> SafeString | str:
        """The error as it is stored, with a link to the open failures of its kind."""
        shown = job.last_error and format_html(
            '<pre class="pgembed-error">{}</pre>', job.last_error
        )
        if job.status != Job.Status.FAILED or job.settled_at is not None:
            return shown
        path = reverse(f"{self.admin_site.name}:pgembed_job_changelist")
        kind = {"status": "failed", "spec": job.spec, "signature": job.signature}
        link = (f"{path}?{urlencode(kind)}", _("All failures of this kind"))
        return format_html('{}<a href="{}">{}</a>', shown, *link)

    @admin.display(description=gettext_lazy("created"))
    def created(self, job: Job) -> str:
        """When the job was enqueued."""
        return _at(job.created_at)

    @admin.display(description=gettext_lazy("finished"))
    def finished(self, job: Job) -> str | None:
        """When the job succeeded or failed."""
        return _at(job.finished_at) if job.finished_at else None

    @admin.display(description=gettext_lazy("worker"))
    def worker(self, job: Job) -> str:
        """The worker that holds the job. Those of former attempts are in the history."""
        return f"#{job.worker_id}" if job.worker_id else "-"

    @admin.display(description=gettext_lazy("characters"))
    def size(self, job: Job) -> int | str:
        """The number of characters of the watched fields."""
        size = source_rows.size(job, using=actions.database())
        return "-" if size is None else size

    @admin.display(description=gettext_lazy("history"))
    def history(self, job: Job) -> SafeString:
        """The unit's attempts that ended in an error, newest first."""
        attempts = Attempt.objects.using(actions.database())
        attempts = attempts.filter(spec=job.spec, source_pk=job.source_pk).order_by("-id")
        context = {"attempts": attempts[:HISTORY_LENGTH]}
        return SafeString(render_to_string("admin/pgembed/job/history.html", context))

    def source_row(self, request: HttpRequest) -> Callable[[Job], SafeString | str]:
        """Return the column with a link to the row, for viewers who may see the row."""

        @admin.display(description=gettext_lazy("source row"))
        def source_row(job: Job) -> SafeString | str:
            return source_rows.source_link(job, request=request, site=self.admin_site) or "-"

        return source_row

    def source_text(self, request: HttpRequest) -> Callable[[Job], SafeString | str]:
        """Return the field with the beginning of the text, for viewers who may see the row."""

        @admin.display(description=gettext_lazy("text"))
        def source_text(job: Job) -> SafeString | str:
            using = actions.database()
            text = source_rows.text(job, request=request, site=self.admin_site, using=using)
            if text is None:
                return _("Not shown: it needs the permission to view the source row.")
            shown = Truncator(text).chars(TEXT_CHARACTERS)
            return format_html('<pre class="pgembed-error">{}</pre>', shown)

        return source_text


def _at(time: datetime) -> str:
    """Return a time in Django's short format."""
    local = timezone.localtime(time) if timezone.is_aware(time) else time
    return date_format(local, "SHORT_DATETIME_FORMAT")
