"""The list of tasks, their kept results, and the schedules. Edits nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from pgembed_django import conf
from pgembed_django.admin import lists
from pgembed_django.admin.actions import Action, for_list, result
from pgembed_django.admin.triage import (
    LinkedFilter,
    SignatureFilter,
    StatusFilter,
    TriageAdmin,
    WorkerFilter,
)
from pgembed_django.models import Task, TaskRecord
from pgembed_django.models.job import OPEN_FAILURE, PENDING, RUNNING, UNSETTLED
from pgembed_django.queue import jobs
from pgembed_django.tasks import backend, triage
from pgembed_django.tasks.table import TASKS

LINK_CHARACTERS = 80


def _retry(task: Task, using: str) -> str:
    return result(triage.retry_failed([task.pk], using=using, wakes=False))


def _run(task: Task, using: str) -> str:
    return result(triage.run_now([task.pk], using=using, wakes=False))


def _cancel(task: Task, using: str) -> str:
    return result(triage.cancel([task.pk], using=using))


def _dismiss(task: Task, using: str) -> str:
    return result(jobs.dismiss([task.pk], using=using, table=TASKS))


def _release(task: Task, using: str) -> str:
    max_crashes = conf.current().max_crashes
    return result(jobs.reap_held([task.pk], max_crashes=max_crashes, using=using, table=TASKS))


VERBS = {
    "retry": Action(
        permission="retry",
        title=gettext_lazy("Retry"),
        explained=gettext_lazy("Each is pending again, with no attempts spent."),
        condition=UNSETTLED,
        run=_retry,
        of=Task,
        is_nudging=True,
    ),
    "run_now": Action(
        permission="retry",
        title=gettext_lazy("Run now"),
        explained=gettext_lazy("Those that wait for a later time, or back off, are due at once."),
        condition=PENDING & Q(run_at__gt=Now()),
        run=_run,
        of=Task,
        is_nudging=True,
    ),
    "dismiss": Action(
        permission="dismiss",
        title=gettext_lazy("Dismiss"),
        explained=gettext_lazy(
            "They leave the list of failures, and are deleted in a week unless they are retried."
        ),
        condition=OPEN_FAILURE,
        run=_dismiss,
        of=Task,
    ),
    "cancel": Action(
        permission="cancel",
        title=gettext_lazy("Cancel"),
        explained=gettext_lazy(
            "Pending ones are deleted. Running ones are asked to stop, which their function has "
            "to look for."
        ),
        condition=PENDING | RUNNING,
        run=_cancel,
        of=Task,
    ),
    "release": Action(
        permission="operate",
        title=gettext_lazy("Release"),
        explained=gettext_lazy(
            "For a worker that is dead. Each task counts a crash, and is claimed alone next time. "
            "If the worker is still alive, what it completes is discarded."
        ),
        condition=RUNNING,
        run=_release,
        of=Task,
    ),
}


class QueueFilter(LinkedFilter):
    """By queue: those in TASKS, and the one that is set. Named as for jobs: see ``failures``."""

    title = gettext_lazy("queue")
    parameter_name = "spec"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, Any]]:
        """Return the queues."""
        linked = super().lookups(request, model_admin)
        return [*dict([(name, name) for name in backend.queues()] + [*linked]).items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the tasks of the queue."""
        return queryset.filter(queue=self.value()) if self.value() else queryset


class TenantFilter(LinkedFilter):
    """Tasks of one tenant."""

    title = gettext_lazy("tenant")
    parameter_name = "tenant"


class FunctionFilter(LinkedFilter):
    """Calls of one function."""

    title = gettext_lazy("function")
    parameter_name = "function"


def _linked(name: str, value: str) -> SafeString | str:
    """Return a value as a link to the rows that have it. Of a long one, its beginning is shown."""
    shown = Truncator(value).chars(LINK_CHARACTERS)
    return value and format_html('<a href="?{}">{}</a>', urlencode({name: value}), shown)


class TaskLists(lists.ReadOnlyAdmin[lists.Row]):
    """What the lists of tasks and of kept results share."""

    def may_see_arguments(self, request: HttpRequest) -> bool:
        """Return whether the viewer may see what tasks were called with and have returned."""
        return request.user.has_perm("pgembed.view_task_arguments")

    @admin.display(description=gettext_lazy("function"))
    def called(self, row: Any) -> SafeString | str:
        """The function, as a link to its calls."""
        return _linked("function", row.function)

    @admin.display(description=gettext_lazy("tenant"))
    def of_tenant(self, row: Any) -> SafeString | str:
        """The tenant, as a link to its tasks."""
        return _linked("tenant", row.tenant)


class TaskAdmin(TaskLists[Task], TriageAdmin[Task]):
    """Lists tasks, newest first. Failures are ordered by when they failed."""

    verbs = VERBS
    parked = gettext_lazy("%(status)s, kept until %(at)s")
    actions = [for_list(name, action) for name, action in VERBS.items()]
    list_display = (
        "id",
        "called",
        "error",
        "state",
        "queue",
        "of_tenant",
        "finished_at",
        "attempts",
        "crashes",
        "worker_id",
        "created_at",
    )
    list_filter = (
        StatusFilter,
        QueueFilter,
        TenantFilter,
        FunctionFilter,
        SignatureFilter,
        WorkerFilter,
    )
    search_fields = ("id",)
    search_help_text = gettext_lazy(
        "A task's id, as the result of enqueue has it. At most 10,000 tasks are counted and listed."
    )
    fieldsets: ClassVar[Any] = (
        (None, {"fields": (("state", "function"), ("queue", "tenant", "priority"), "full_error")}),
        (
            gettext_lazy("Attempts"),
            {"fields": (("attempts", "crashes", "outages", "claims"),)},
        ),
        (
            gettext_lazy("Times"),
            {
                "classes": ["collapse"],
                "fields": (
                    ("created_at", "started_at", "finished_at"),
                    ("settled_at", "run_at", "cancel_asked_at"),
                ),
            },
        ),
        (
            gettext_lazy("Keys"),
            {
                "classes": ["collapse"],
                "fields": (("once", "unit", "serial"), ("is_scheduled", "batch_id")),
            },
        ),
        (
            gettext_lazy("Worker"),
            {"classes": ["collapse"], "fields": (("worker_id", "lease_expires_at"),)},
        ),
    )

    def unit_of(self, row: Task) -> tuple[str, str]:
        """Return the task's queue and key."""
        return row.queue, row.unit

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of Django's pages, and of our own."""
        schedules = path("schedules/", self.wrapped(show_schedules), name="pgembed_task_schedules")
        return [schedules, *super().get_urls()]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Task], search_term: str
    ) -> tuple[QuerySet[Task], bool]:
        """Find a task by its id."""
        if term := search_term.strip():
            is_id = term.isdecimal() and len(term) < 19
            queryset = queryset.filter(pk=int(term)) if is_id else queryset.none()
        return queryset, False

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may cancel tasks."""
        return VERBS["cancel"].is_allowed(request)

    def detail(self, request: HttpRequest, row: Task) -> dict[str, Any]:
        """Return the arguments, if the viewer may see them."""
        return {"arguments": _shown(row.arguments) if self.may_see_arguments(request) else None}


class TaskRecordAdmin(TaskLists[TaskRecord]):
    """Lists tasks that have succeeded and whose results are kept, the latest first."""

    list_display = ("id", "called", "queue", "of_tenant", "finished_at", "expires_at", "worker")
    list_filter = (QueueFilter, TenantFilter, FunctionFilter)
    ordering = ("-finished_at", "-id")
    fields: ClassVar[Any] = (
        ("function", "queue", "tenant", "priority"),
        "result_text",
        "arguments_text",
        ("created_at", "started_at", "finished_at", "expires_at"),
        ("worker", "claims"),
    )

    class Media:
        css = {"all": ["pgembed/admin.css"]}

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Leave out what the viewer may not see, and say so."""
        if self.may_see_arguments(request):
            return self.fields
        names = [name for name in self.fields if name not in ("result_text", "arguments_text")]
        return [*names[:1], "hidden_text", *names[1:]]

    @admin.display(description=gettext_lazy("result and arguments"))
    def hidden_text(self, record: TaskRecord) -> str:
        """Why neither is shown."""
        return _("Not shown: it needs the permission to see the arguments of tasks.")

    @admin.display(description=gettext_lazy("result"))
    def result_text(self, record: TaskRecord) -> SafeString:
        """What the function has returned."""
        return format_html('<pre class="pgembed-error">{}</pre>', _shown(record.result))

    @admin.display(description=gettext_lazy("arguments"))
    def arguments_text(self, record: TaskRecord) -> SafeString:
        """What it was called with."""
        return format_html('<pre class="pgembed-error">{}</pre>', _shown(record.arguments))


def _shown(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def show_schedules(model_admin: TaskAdmin, request: HttpRequest) -> HttpResponse:
    """Show the schedules, with the last and the next run of each."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    rows = model_admin.get_queryset(request)
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": _("Schedules"),
        "runs": rows.filter(PENDING | RUNNING, is_scheduled=True).order_by("function"),
        "may_run": VERBS["run_now"].is_allowed(request),
    }
    return TemplateResponse(request, "admin/pgembed/schedules.html", context)
