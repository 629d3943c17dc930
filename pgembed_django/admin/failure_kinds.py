"""The page of open failures by kind of error: what fails, how often, since when, what to do."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from pgembed_django.admin import actions, bulk
from pgembed_django.moments import seconds_between
from pgembed_django.ops import status
from pgembed_django.ops.status import FailureKind

if TYPE_CHECKING:
    from pgembed_django.admin.jobs import JobAdmin


MAX_COUNT = 5000
"""Counts of a kind stop here, as "5,000+". The confirmation page counts further."""


def view(model_admin: JobAdmin, request: HttpRequest) -> HttpResponse:
    """Show the kinds of errors, the most frequent first."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    spec = request.GET.get("spec")
    found = status.failure_kinds(
        using=actions.using(), specs=[spec] if spec else None, max_count=MAX_COUNT
    )
    now = timezone.now()
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": _("Failures of %s") % spec if spec else _("Failures"),
        "kinds": [_shown(model_admin, request, kind, now) for kind in found.kinds],
        "is_whole": found.is_whole,
    }
    return TemplateResponse(request, "admin/pgembed/failures.html", context)


def _shown(
    model_admin: JobAdmin, request: HttpRequest, kind: FailureKind, now: datetime
) -> dict[str, Any]:
    """Return the template's context for a kind. The actions' links lead to a confirmation page."""
    site = model_admin.admin_site.name
    parameters = {"status": "failed", "spec": kind.spec, "signature": kind.signature}
    jobs_url = reverse(f"{site}:pgembed_job_changelist")
    return {
        "spec": kind.spec,
        "signature": kind.signature,
        "number": str(kind.count),
        "first_at": kind.first_at,
        "last_at": kind.last_at,
        "first_seconds": max(0.0, seconds_between(kind.first_at, now)),
        "last_seconds": max(0.0, seconds_between(kind.last_at, now)),
        "sample": kind.sample,
        "sample_url": reverse(f"{site}:pgembed_job_change", args=[kind.sample_id]),
        "jobs_url": f"{jobs_url}?{urlencode(parameters)}",
        "acts": [
            (name, actions.ACTS[name].title, bulk.url(model_admin, name, parameters))
            for name in ("retry", "dismiss")
            if actions.ACTS[name].is_allowed(request)
        ],
    }
