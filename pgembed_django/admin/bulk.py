"""An act on all that match: a page that asks, then batches, each a page that goes on by itself.

Nothing is kept on the server between two batches, but how far a run over all rows has come:
it is a backfill, and goes on where it was. Another run that is left in the middle has done
what it says, and may be started again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from pgembed_django import specs
from pgembed_django.admin import acts, filters
from pgembed_django.maintenance import backfill, reconcile
from pgembed_django.models import Job

if TYPE_CHECKING:
    from pgembed_django.admin.jobs import JobAdmin

BATCH = 1000
MAX_COUNT = 100_000
"""Counted up to here: then it says "more than"."""

WAIT_SECONDS = 3
"""How long a page waits that has nothing to do just now, before it goes on by itself."""

SPEC_ROWS = "rows"
"""The scope of a whole spec's source rows, where the others are jobs."""


@dataclass(slots=True)
class Batch:
    """What one batch did, and where the next one begins. An empty cursor is the end.

    ``awaits`` tells what it could not go on for. Empty: it did.
    """

    counts: acts.Counts
    taken: int
    cursor: str
    awaits: str = ""


class Jobs:
    """The jobs that match the list's parameters, in the order of their ids."""

    resumed_from = None

    def __init__(self, act: str, given: Mapping[str, str], model_admin: JobAdmin) -> None:
        self.act = acts.ACTS[act]
        self.parameters = filters.asked(given)
        # Without a status: what is listed as failed, never the whole table.
        parameters = {"status": "failed", **self.parameters}
        if act == "release":
            parameters["status"] = "running"
        self._jobs = filters.matching(
            Job.objects.using(acts.using()).filter(self.act.condition), parameters
        )

    @property
    def name(self) -> str:
        shown = (Truncator(value).chars(80) for value in self.parameters.values())
        return _("all that match: %s") % ", ".join(shown or [_("failed")])

    def count(self) -> int:
        return self._jobs.order_by()[: MAX_COUNT + 1].count()

    def noun(self, count: int) -> str:
        return ngettext("%s job", "%s jobs", count)

    def end(self) -> str:
        """Return the last id there is: what fails from now on is not taken along."""
        last = Job.objects.using(acts.using()).order_by("-pk").values_list("pk", flat=True).first()
        return str(last or 0)

    def run(self, cursor: str, end: str) -> Batch:
        after, last = int(cursor or 0), int(end)
        found = self._jobs.filter(pk__gt=after, pk__lte=last).order_by("pk")
        ids = list(found.values_list("pk", flat=True)[:BATCH])
        return Batch(self.act.run(ids), len(ids), str(ids[-1]) if len(ids) == BATCH else "")


class Rows:
    """The source rows of a spec: a backfill, like ``embed_backfill --force``.

    The cursor only counts how often it came back in vain to rows that are being written.
    """

    def __init__(self, act: str, given: Mapping[str, str], model_admin: JobAdmin) -> None:
        spec = specs.get(given.get("spec", ""))
        if spec is None or act != "reembed":
            raise Http404
        self.act = acts.ACTS[act]
        self.spec = spec
        self.parameters = {"spec": spec.key, "scope": SPEC_ROWS}
        self._backfill = backfill.Backfill(spec, using=acts.using(), where={}, force=True)
        self.resumed_from = self._backfill.resumed_from
        self._begins_anew = bool(given.get("restart"))

    @property
    def name(self) -> str:
        return _("all rows of %s") % self.spec.key

    def count(self) -> int:
        return self._after() + len(self._backfill.left)

    def _after(self) -> int:
        return self._backfill.rows_left.order_by()[: MAX_COUNT + 1].count()

    def noun(self, count: int) -> str:
        return ngettext("%s row", "%s rows", count)

    def end(self) -> str:
        """Return how the run before this one has ended: another end is that of this one."""
        return self._backfill.ended

    def run(self, cursor: str, end: str) -> Batch:
        in_vain = int(cursor or 0)
        if self._begins_anew:
            self._backfill.restart()
        elif self._backfill.ended not in {"", end}:
            return Batch({}, 0, "")  # by the command, or by another person
        step = self._backfill.step(limit=BATCH)
        if step is None:
            wait = _("It goes on when fewer than %s rows wait to be embedded.")
            return Batch({}, 0, "0", awaits=wait % f"{reconcile.MAX_BACKLOG:,}")
        counts = {"reembedded": step.enqueued}
        if step.is_last:
            return Batch(counts, step.rows, "")
        if not step.is_in_vain:
            return Batch(counts, step.rows, "0")
        left = len(self._backfill.left)
        if in_vain + 1 >= backfill.TRIES:
            return Batch({"busy": left, "after": self._after()}, 0, "")
        locked = ngettext(
            "%d row is locked by an open write: it is asked for again.",
            "%d rows are locked by an open write: they are asked for again.",
            left,
        )
        return Batch({}, 0, str(in_vain + 1), awaits=locked % left)


def view(model_admin: JobAdmin, request: HttpRequest, act: str) -> HttpResponse:
    """GET asks. POST does the first batch, or the next one, and says how far it has come."""
    if act not in acts.ACTS:
        raise Http404
    if not (model_admin.has_view_permission(request) and acts.ACTS[act].is_allowed(request)):
        raise PermissionDenied
    given = request.POST if request.method == "POST" else request.GET
    scope = (Rows if given.get("scope") == SPEC_ROWS else Jobs)(act, given, model_admin)
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
    """Return the address of the page that asks."""
    path = reverse(f"{model_admin.admin_site.name}:pgembed_job_all", args=[act])
    return f"{path}?{urlencode(filters.asked(parameters))}"


def _ask(request: HttpRequest, scope: Jobs | Rows, context: dict[str, Any]) -> HttpResponse:
    count = scope.count()
    is_bounded = count > MAX_COUNT
    number = acts.numbered(min(count, MAX_COUNT), is_bounded=is_bounded)
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
    scope: Jobs | Rows,
    context: dict[str, Any],
) -> HttpResponse:
    cursor, end = request.POST.get("cursor", ""), request.POST.get("end", "")
    try:
        total, taken = int(request.POST.get("total", "0")), int(request.POST.get("taken", "0"))
        counts = Counter({str(key): int(n) for key, n in _loaded(request).items()})
        batch = scope.run(cursor, end)
    except (ValueError, AttributeError, ValidationError) as error:
        raise Http404 from error
    counts.update(batch.counts)
    if not batch.awaits:
        acts.log(request, acts.told(act, batch.counts), about=scope.name)
    said = acts.told(act, counts)
    if not batch.cursor:
        level = messages.SUCCESS if acts.is_done(counts) else messages.WARNING
        model_admin.message_user(request, said, level)
        return HttpResponseRedirect(context["back"])
    context |= {
        "title": _("%s: at work") % scope.act.title,
        "said": f"{said} {batch.awaits}",
        "wait_seconds": WAIT_SECONDS if batch.awaits else 0,
        "taken": taken + batch.taken,
        "total": max(total, taken + batch.taken),
        "is_bounded": total > MAX_COUNT,
        "cursor": batch.cursor,
        "end": end,
        "counts": json.dumps(counts),
    }
    return TemplateResponse(request, "admin/pgembed/progress.html", context)


def _loaded(request: HttpRequest) -> dict[str, int]:
    loaded: dict[str, int] = json.loads(request.POST.get("counts", "{}"))
    return loaded


def _back(model_admin: JobAdmin, scope: Jobs | Rows) -> str:
    name = model_admin.admin_site.name
    if isinstance(scope, Rows):
        return reverse(f"{name}:app_list", args=["pgembed"])
    if "signature" in scope.parameters:
        return reverse(f"{name}:pgembed_job_failures")
    lists = reverse(f"{name}:pgembed_job_changelist")
    return f"{lists}?{urlencode(scope.parameters)}"
