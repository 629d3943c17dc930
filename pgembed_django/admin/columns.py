"""The columns and fields of the job pages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from pgembed_django.admin import actions, source_rows
from pgembed_django.admin.lists import ReadOnlyAdmin
from pgembed_django.models import Attempt, Job

ERROR_CHARACTERS = 100
HISTORY_LENGTH = 30
TEXT_CHARACTERS = 500


class JobColumns(ReadOnlyAdmin[Job]):
    """The columns of the list, and the fields of the page of one job."""

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
        named = {"status": status, "at": at(job.run_at)}
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

    @admin.display(description=gettext_lazy("created"))
    def created(self, job: Job) -> str:
        """When the job was enqueued."""
        return at(job.created_at)

    @admin.display(description=gettext_lazy("finished"))
    def finished(self, job: Job) -> str | None:
        """When the job succeeded or failed."""
        return at(job.finished_at) if job.finished_at else None

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

    @admin.display(description=gettext_lazy("worker"))
    def worker(self, job: Job) -> str:
        """The worker that holds the job, or that held it when it last failed."""
        if job.worker_id:
            return f"#{job.worker_id}"
        if hasattr(job, "pgembed_worker"):
            last: str | None = job.pgembed_worker
        else:
            last = _workers([job]).get(_unit(job))
        return last or "-"  # a job's own page would show None

    @admin.display(description=gettext_lazy("characters"))
    def size(self, job: Job) -> int | str:
        """The number of characters of the watched fields."""
        if hasattr(job, "pgembed_size"):
            size: int | None = job.pgembed_size
        else:
            size = source_rows.size(job, using=actions.using())
        return "-" if size is None else size

    @admin.display(description=gettext_lazy("history"))
    def history(self, job: Job) -> SafeString:
        """The unit's attempts that ended in an error, newest first."""
        found = Attempt.objects.using(actions.using()).filter(
            spec=job.spec, source_pk=job.source_pk
        )
        context = {"attempts": found.order_by("-id")[:HISTORY_LENGTH]}
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
            text = source_rows.text(
                job, request=request, site=self.admin_site, using=actions.using()
            )
            if text is None:
                return _("Not shown: it needs the permission to view the source row.")
            shown = Truncator(text).chars(TEXT_CHARACTERS)
            return format_html('<pre class="pgembed-error">{}</pre>', shown)

        return source_text


def attach(found: list[Job]) -> None:
    """Look up the sizes and workers of all jobs of a page together, and set them on the jobs."""
    sizes = source_rows.sizes(found, using=actions.using())
    workers = _workers(found)
    for job in found:
        job.pgembed_size = sizes.get(_unit(job))  # type: ignore[attr-defined]
        job.pgembed_worker = workers.get(_unit(job))  # type: ignore[attr-defined]


def at(time: datetime) -> str:
    """Return a time in Django's short format."""
    local = timezone.localtime(time) if timezone.is_aware(time) else time
    return date_format(local, "SHORT_DATETIME_FORMAT")


def _unit(job: Job) -> tuple[str, str]:
    return job.spec, job.source_pk


def _workers(found: list[Job]) -> dict[Any, str]:
    """Return the worker of each unit's last failed attempt, for the jobs that have an error."""
    failed = [job for job in found if job.last_error]
    if not failed:
        return {}
    attempts = Attempt.objects.using(actions.using()).filter(
        spec__in={job.spec for job in failed}, source_pk__in={job.source_pk for job in failed}
    )
    # The last attempt of each unit overwrites the others.
    rows = attempts.order_by("id").values_list("spec", "source_pk", "worker")
    return {(spec, source_pk): worker for spec, source_pk, worker in rows}
