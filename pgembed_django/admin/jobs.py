"""The job list: what failed and why, with Retry and Dismiss. Jobs themselves are read-only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import router
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from pgembed_django import jobs
from pgembed_django.admin.filters import STATUSES, SpecFilter, StatusFilter
from pgembed_django.admin.reading import ReadOnlyAdmin
from pgembed_django.admin.sources import source_link
from pgembed_django.models import Job

ERROR_CHARACTERS = 100
MAX_SELECTED = 1000
"""How many jobs one Retry or Dismiss takes, so that its page ends in good time."""


class Selection(NamedTuple):
    """What an action was asked for: open failures by id, and counts of what else there was."""

    failures: list[int]
    others: int
    gone: int
    is_bounded: bool


class JobAdmin(ReadOnlyAdmin[Job]):
    """Lists jobs, newest first; failures by the time of failing."""

    actions = ("retry", "dismiss")
    list_filter = (StatusFilter, SpecFilter)
    search_fields = ("source_pk",)
    search_help_text = gettext_lazy("A row's key, a spec, or both: blog.ArticleEmbedding 17")

    class Media:
        css = {"all": ["pgembed/admin.css"]}

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns. The link to the source row depends on who is looking."""
        return (
            "unit",
            "state",
            "error",
            self._source_row(request),
            "kind",
            "attempts",
            "crashes",
            "created",
            "finished",
        )

    def get_fieldsets(self, request: HttpRequest, obj: Job | None = None) -> Any:
        """Return what the page of one job shows: first what an operator asks."""
        return (
            (None, {"fields": (("state", self._source_row(request), "kind"), "full_error")}),
            (
                _("Tries"),
                {"fields": (("attempts", "crashes", "claims"), ("parkings", "items"))},
            ),
            (
                _("Times"),
                {
                    "fields": (
                        ("created_at", "started_at", "finished_at"),
                        ("settled_at", "run_at"),
                    )
                },
            ),
            (_("Queue"), {"fields": (("priority", "worker", "lease_expires_at"),)}),
        )

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the order that an index gives for the chosen status."""
        shown = STATUSES.get(request.GET.get(StatusFilter.parameter_name, ""))
        return shown.ordering if shown else ("-id",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Find a unit as it is written, not a part of it: so an index of its status can help."""
        term = search_term.strip()
        if not term:
            return queryset, False
        spec, _space, source_pk = term.partition(" ")
        unit = Q(spec=spec, source_pk=source_pk.strip())
        return queryset.filter(unit | Q(source_pk=term) | Q(spec=term)), False

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Tell whether the viewer may start failed units afresh."""
        return request.user.has_perm("pgembed.retry_job")

    def has_dismiss_permission(self, request: HttpRequest) -> bool:
        """Tell whether the viewer may settle failures without retrying them."""
        return request.user.has_perm("pgembed.dismiss_job")

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show the buttons to those who may use them, while there is a failure to settle."""
        job: Job = context["original"]
        is_open = job.status == Job.Status.FAILED and job.settled_at is None
        context["may_retry"] = is_open and self.has_retry_permission(request)
        context["may_dismiss"] = is_open and self.has_dismiss_permission(request)
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.action(permissions=["retry"], description=gettext_lazy("Retry selected failures"))
    def retry(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        """Start the selected failed units afresh."""
        chosen = _selection(request, queryset)
        result = jobs.retry_failed(chosen.failures, using=_using())
        self._report(
            request,
            chosen,
            done=result.retried + result.superseded,
            parts=[
                (_("retried %d"), result.retried),
                (_("superseded by newer work %d"), result.superseded),
                (_("gone %d"), result.gone + chosen.gone),
                (_("locked by an open write %d (try again)"), result.busy),
            ],
        )

    @admin.action(permissions=["dismiss"], description=gettext_lazy("Dismiss selected failures"))
    def dismiss(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        """Settle the selected failures without retrying them."""
        chosen = _selection(request, queryset)
        dismissed = jobs.dismiss(chosen.failures, using=_using())
        gone = len(chosen.failures) - dismissed + chosen.gone
        self._report(
            request,
            chosen,
            done=dismissed,
            parts=[(_("dismissed %d"), dismissed), (_("gone %d"), gone)],
        )

    @admin.display(description=gettext_lazy("unit"))
    def unit(self, job: Job) -> str:
        """What the job is about."""
        return str(job)

    @admin.display(description=gettext_lazy("status"))
    def state(self, job: Job) -> str:
        """The status, and what it is waiting for."""
        status = job.get_status_display()
        if job.settled_at is not None:
            return _("%s, settled since") % status
        if job.status == Job.Status.DISMISSED:
            return _("%(status)s, parked until %(at)s") % {"status": status, "at": _at(job.run_at)}
        if job.status == Job.Status.PENDING and job.run_at > timezone.now():
            return _("%(status)s, not before %(at)s") % {"status": status, "at": _at(job.run_at)}
        return status

    @admin.display(description=gettext_lazy("last error"))
    def error(self, job: Job) -> str:
        """The beginning of the error."""
        return Truncator(job.last_error).chars(ERROR_CHARACTERS)

    @admin.display(description=gettext_lazy("created"))
    def created(self, job: Job) -> str:
        """The time of the write, or of whatever else asked for the job."""
        return _at(job.created_at)

    @admin.display(description=gettext_lazy("finished"))
    def finished(self, job: Job) -> str | None:
        """When it succeeded or failed."""
        return _at(job.finished_at) if job.finished_at else None

    @admin.display(description=gettext_lazy("last error"))
    def full_error(self, job: Job) -> SafeString | str:
        """The error as it is stored."""
        return job.last_error and format_html('<pre class="pgembed-error">{}</pre>', job.last_error)

    @admin.display(description=gettext_lazy("chunks embedded"))
    def items(self, job: Job) -> str:
        """Chunks done, of how many."""
        return _("%(done)d of %(total)d") % {"done": job.items_done, "total": job.items_total}

    @admin.display(description=gettext_lazy("worker"))
    def worker(self, job: Job) -> int | None:
        """The worker that holds the job."""
        return job.worker_id

    def _source_row(self, request: HttpRequest) -> Callable[[Job], SafeString | None]:
        @admin.display(description=gettext_lazy("source row"))
        def source_row(job: Job) -> SafeString | None:
            return source_link(job, request=request, site=self.admin_site)

        return source_row

    def _report(
        self,
        request: HttpRequest,
        chosen: Selection,
        *,
        done: int,
        parts: list[tuple[str, int]],
    ) -> None:
        """Say exactly what happened: what was asked for always, the rest where there was any."""
        parts = [parts[0], *(part for part in parts[1:] if part[1])]
        if chosen.others:
            parts.append((_("not open failures %d"), chosen.others))
        text = ", ".join(text % count for text, count in parts)
        message = f"{text[0].upper()}{text[1:]}."
        if chosen.is_bounded:
            message += " " + _("Only the first %d were taken: select the others again.") % (
                MAX_SELECTED
            )
        is_whole = done and not chosen.is_bounded
        self.message_user(request, message, messages.SUCCESS if is_whole else messages.WARNING)


def _selection(request: HttpRequest, queryset: QuerySet[Job]) -> Selection:
    """Sort what was selected. Jobs that the filter no longer shows are gone."""
    found = list(queryset.values_list("id", "status", "settled_at")[: MAX_SELECTED + 1])
    taken = found[:MAX_SELECTED]
    failures = [
        job_id
        for job_id, status, settled_at in taken
        if status == Job.Status.FAILED and settled_at is None
    ]
    is_across = request.POST.get("select_across") == "1"
    selected = len(found) if is_across else len(set(request.POST.getlist(ACTION_CHECKBOX_NAME)))
    return Selection(
        failures=failures,
        others=len(taken) - len(failures),
        gone=max(0, selected - len(found)),
        is_bounded=len(found) > MAX_SELECTED,
    )


def _at(time: datetime) -> str:
    """Return a time short enough for a column."""
    local = timezone.localtime(time) if timezone.is_aware(time) else time
    return date_format(local, "SHORT_DATETIME_FORMAT")


def _using() -> str:
    return router.db_for_write(Job)
