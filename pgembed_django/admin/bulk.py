"""An act on all that match: a confirmation page, then one self-submitting page per batch.

The server keeps no state between two batches. The exception is a run over all rows: it is a
backfill, and resumes where it stopped. Any other run that is abandoned has done what its last page
says, and can be started again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.core.exceptions import BadRequest, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from pgembed_django.admin import actions, filters, scopes

if TYPE_CHECKING:
    from pgembed_django.admin.jobs import JobAdmin

WAIT_SECONDS = 3
"""How long a page waits before it submits itself, if its batch has to wait."""

Scope = scopes.Jobs | scopes.Rows


@dataclass(frozen=True, slots=True)
class Form:
    """The progress of a run, as posted by the previous page."""

    cursor: int
    end: str
    total: int
    taken: int
    counts: Counter[str]

    @classmethod
    def of(cls, posted: Mapping[str, str], scope: Scope) -> Form:
        """Read a posted form.

        Raises:
            BadRequest: none of our pages can have sent it.
        """
        end = posted.get("end", "")
        try:
            counts = json.loads(posted.get("counts", "{}"))
            form = cls(
                cursor=int(posted.get("cursor") or 0),
                end=end,
                total=int(posted.get("total", 0)),
                taken=int(posted.get("taken", 0)),
                counts=Counter({str(key): int(count) for key, count in counts.items()}),
            )
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise BadRequest from error
        if not scope.is_end(end):
            raise BadRequest
        return form


def view(model_admin: JobAdmin, request: HttpRequest, act: str) -> HttpResponse:
    """Ask for confirmation on GET. Do the first or next batch on POST, and show the progress."""
    if act not in actions.ACTS:
        raise Http404
    if not (model_admin.has_view_permission(request) and actions.ACTS[act].is_allowed(request)):
        raise PermissionDenied
    given = request.POST if request.method == "POST" else request.GET
    scope = (scopes.Rows if given.get("scope") == scopes.SPEC_ROWS else scopes.Jobs)(act, given)
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "act": act,
        "what": scope.act,
        "parameters": scope.parameters,
        "name": scope.name,
        "back": _back(model_admin, scope),
    }
    if request.method != "POST":
        return _ask(request, scope, context)
    return _do(model_admin, request, act, scope, context)


def url(model_admin: JobAdmin, act: str, parameters: Mapping[str, str]) -> str:
    """Return the URL of the confirmation page."""
    path = reverse(f"{model_admin.admin_site.name}:pgembed_job_all", args=[act])
    return f"{path}?{urlencode(filters.asked(parameters))}"


def _ask(request: HttpRequest, scope: Scope, context: dict[str, Any]) -> HttpResponse:
    count = scope.count()
    is_bounded = count > scopes.MAX_COUNT
    number = actions.numbered(min(count, scopes.MAX_COUNT), is_bounded=is_bounded)
    context |= {
        "count": count,
        "end": scope.end(),
        "title": str(scope.act.question) % {"count": scope.noun(count) % number},
        "resumed_from": scope.resumed_from,
    }
    return TemplateResponse(request, "admin/pgembed/confirm.html", context)


def _do(
    model_admin: JobAdmin,
    request: HttpRequest,
    act: str,
    scope: Scope,
    context: dict[str, Any],
) -> HttpResponse:
    form = Form.of(request.POST, scope)
    batch = scope.run(form.cursor, form.end)
    counts = form.counts + Counter(batch.counts)
    if not batch.awaits:
        actions.log(request, actions.told(act, batch.counts), about=scope.name)
    said = actions.told(act, counts)
    if batch.next_cursor is None:
        model_admin.message_user(request, said, actions.level(counts))
        return HttpResponseRedirect(context["back"])
    context |= {
        "title": _("%s: at work") % scope.act.title,
        "said": f"{said} {batch.awaits}",
        "wait_seconds": WAIT_SECONDS if batch.awaits else 0,
        "taken": form.taken + batch.taken,
        "total": max(form.total, form.taken + batch.taken),
        "is_bounded": form.total > scopes.MAX_COUNT,
        "cursor": batch.next_cursor,
        "end": form.end,
        "counts": json.dumps(counts),
    }
    return TemplateResponse(request, "admin/pgembed/progress.html", context)


def _back(model_admin: JobAdmin, scope: Scope) -> str:
    name = model_admin.admin_site.name
    if isinstance(scope, scopes.Rows):
        return reverse(f"{name}:app_list", args=["pgembed"])
    if "signature" in scope.parameters:
        return reverse(f"{name}:pgembed_job_failures")
    lists = reverse(f"{name}:pgembed_job_changelist")
    return f"{lists}?{urlencode(scope.parameters)}"
