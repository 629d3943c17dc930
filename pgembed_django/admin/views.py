"""What a person starts from a page: an action on many jobs, and the overview's buttons."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR
from django.core.exceptions import BadRequest, ImproperlyConfigured, PermissionDenied
from django.db.models import QuerySet
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from pgembed_django import conf, providers, specs
from pgembed_django.admin import actions, lists
from pgembed_django.exceptions import ProviderError
from pgembed_django.models import Job, Pause
from pgembed_django.providers import Probe
from pgembed_django.queue import jobs
from pgembed_django.spaces import backfill, reconcile
from pgembed_django.threads import Threads

if TYPE_CHECKING:
    from pgembed_django.admin.jobs import JobAdmin

MAX_COUNT = 100_000
"""Counts of what is left stop here, and the page says "more than"."""

MAX_JOBS = 10_000
"""How many jobs a request reads at most. It has no time for so many."""

ROWS_AT_ONCE = 100
"""After how many source rows the time is looked at."""

PROBE_SECONDS = 5.0
"""How long a page waits for a probe: the provider's own time-out may be minutes."""


def _url(model_admin: JobAdmin, name: str, *arguments: object) -> str:
    return reverse(f"{model_admin.admin_site.name}:pgembed_job_{name}", args=arguments)


def _overview_url(model_admin: JobAdmin) -> str:
    return reverse(f"{model_admin.admin_site.name}:app_list", args=["pgembed"])


# An action on many jobs. A request works for ``actions.MAX_SECONDS``; the page that follows says
# what was done and how many are left, with a button for the rest. The server keeps no state.


def act_on_selected(
    model_admin: JobAdmin, request: HttpRequest, name: str, queryset: QuerySet[Job]
) -> HttpResponse:
    """Act on the jobs selected in the list. To act on all that match, ask first."""
    query = request.GET.copy()
    query.pop(PAGE_VAR, None)  # there may be fewer pages afterwards
    if request.POST.get("select_across") == "1":
        return HttpResponseRedirect(f"{_url(model_admin, 'all', name)}?{query.urlencode()}")
    action = actions.ACTIONS[name]
    found = {job.pk: job for job in queryset}
    concerned = list(queryset.filter(action.condition).order_by("pk").values_list("pk", flat=True))
    counts, rest = actions.work_through(action, concerned, using=actions.database())
    # Selected jobs that the filter no longer shows count as gone.
    counts["gone"] += len(set(request.POST.getlist(ACTION_CHECKBOX_NAME))) - len(found)
    counts["unchanged"] += len(found) - len(concerned)
    done = set(concerned).difference(rest)
    about = [job for pk, job in found.items() if pk in done]
    actions.log(request, actions.summary(action, counts), about=about)
    return _answer(
        model_admin,
        request,
        action,
        counts=counts,
        left=len(rest),
        about=_("Selected jobs"),
        url=f"{_url(model_admin, 'changelist')}?{query.urlencode()}",
        form=[("action", name), *((ACTION_CHECKBOX_NAME, job_id) for job_id in rest)],
        back=request.get_full_path(),
    )


def act_on_all(model_admin: JobAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Ask on GET whether to act on all jobs that the list shows for the query. Do it on POST.

    In the form, ``end`` is the newest job at the time of the question, so that later ones are left
    out, and ``after`` is the last job that was acted on.
    """
    action = actions.ACTIONS.get(name)
    if action is None:
        raise Http404
    if not (model_admin.has_view_permission(request) and action.is_allowed(request)):
        raise PermissionDenied
    query = request.GET.copy()
    if query.get("status") not in lists.STATUSES:
        query["status"] = action.status
    request.GET = query  # type: ignore[assignment]  # the list reads it
    try:
        matching = model_admin.get_changelist_instance(request).queryset
        after, end = int(request.POST.get("after", 0)), int(request.POST.get("end", 0))
    except (IncorrectLookupParameters, ValueError) as error:
        raise BadRequest from error
    if not end:
        newest = Job.objects.using(actions.database()).order_by("-pk").values_list("pk", flat=True)
        end = newest.first() or 0
    found = matching.filter(action.condition, pk__lte=end).order_by("pk")
    values = (Truncator(str(value)).chars(80) for value in query.dict().values())
    about = _("All that match: %s") % ", ".join(values)
    counts = None
    if request.method == "POST":
        ids = list(found.filter(pk__gt=after).values_list("pk", flat=True)[:MAX_JOBS])
        counts, rest = actions.work_through(action, ids, using=actions.database())
        after = ids[-len(rest) - 1] if ids else after
        actions.log(request, actions.summary(action, counts), about=about)
    return _answer(
        model_admin,
        request,
        action,
        counts=counts,
        left=found.filter(pk__gt=after).order_by()[: MAX_COUNT + 1].count(),
        about=about,
        url=f"{request.path}?{query.urlencode()}",
        form=[("after", after), ("end", end)],
        back=_url(model_admin, "failures")
        if "signature" in query
        else f"{_url(model_admin, 'changelist')}?{query.urlencode()}",
    )


def reembed_rows(
    model_admin: JobAdmin, request: HttpRequest, *, clock: Callable[[], float] = time.monotonic
) -> HttpResponse:
    """Re-embed all rows of a spec. This is the backfill that ``embed_backfill --force`` runs.

    It resumes where it stopped. Once ``end`` is no longer the end of the last run, the present one
    was completed elsewhere, and the button for the rest must not start another.
    """
    action = actions.ACTIONS["reembed"]
    if not (model_admin.has_view_permission(request) and action.is_allowed(request)):
        raise PermissionDenied
    spec = specs.get(request.GET.get("spec", ""))
    if spec is None:
        raise Http404
    run = backfill.Backfill(spec, using=actions.database(), where=(), force=True)
    about = _("All rows of %s") % spec.key
    end = request.POST.get("end", run.ended)
    counts: Counter[str] | None = None
    is_over, note = False, ""
    if request.method == "POST":
        counts = Counter()
        ends_at = clock() + actions.MAX_SECONDS
        is_over = run.ended not in ("", end)
        while not is_over:
            step = run.step(limit=ROWS_AT_ONCE)
            if step is None:
                note = _("Continue when fewer than %s rows wait to be embedded.")
                note %= f"{reconcile.MAX_BACKLOG:,}"
                break
            counts["reembedded"] += step.enqueued
            is_over = step.is_last
            if step.is_in_vain:
                counts["busy"] = len(run.left)
                break
            if clock() >= ends_at:
                break
        if counts:
            actions.log(request, actions.summary(action, counts), about=about)
    elif run.resumed_from is not None:
        note = _("An earlier run stopped after row %s. This continues it.") % run.resumed_from
    left = run.keys_left.order_by()[: MAX_COUNT + 1].count() + len(run.left)
    return _answer(
        model_admin,
        request,
        action,
        counts=counts,
        left=0 if is_over else left,
        about=about,
        note=note,
        is_rows=True,
        url=request.get_full_path(),
        form=[("end", end)],
        back=_overview_url(model_admin),
    )


def _answer(
    model_admin: JobAdmin,
    request: HttpRequest,
    action: actions.Action,
    *,
    counts: actions.Counts | None,
    left: int,
    about: str,
    url: str,
    form: Sequence[tuple[str, object]],
    back: str,
    note: str = "",
    is_rows: bool = False,
) -> HttpResponse:
    """Ask (no ``counts`` yet), offer to do the rest, or go ``back`` with a message."""
    said = "" if counts is None else actions.summary(action, counts)
    if counts is not None and not left:
        model_admin.message_user(request, said, actions.level(counts))
        return HttpResponseRedirect(back)
    number = f"{min(left, MAX_COUNT):,}"
    number = _("more than %s") % number if left > MAX_COUNT else number
    noun = ngettext("%s row", "%s rows", left) if is_rows else ngettext("%s job", "%s jobs", left)
    amount = noun % number
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": _("%s left") % amount if said else str(action.question) % {"count": amount},
        "action": action,
        "left": left,
        "about": about,
        "said": said,
        "note": note,
        "url": url,
        "form": [(name, str(value)) for name, value in form],
        "back": back,
    }
    return TemplateResponse(request, "admin/pgembed/action.html", context)


# The overview's buttons


def press(model_admin: JobAdmin, request: HttpRequest, verb: str) -> HttpResponse:
    """Do one of ``VERBS``, show a message with the result, and redirect to the overview."""
    if verb not in VERBS:
        raise Http404
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if not (
        model_admin.has_view_permission(request) and actions.ACTIONS["reembed"].is_allowed(request)
    ):
        raise PermissionDenied
    name = request.POST.get("name", "")
    level, said = VERBS[verb](request, name)
    actions.log(request, said, about=name)
    model_admin.message_user(request, said, level)
    return HttpResponseRedirect(_overview_url(model_admin))


def _pause(request: HttpRequest, name: str) -> tuple[int, str]:
    what = request.POST.get("what", "")
    known: Mapping[str, object] = {
        Pause.What.SPEC: specs.get(name),
        Pause.What.PROVIDER: name in conf.current().declared,
    }
    if not known.get(what):
        raise Http404
    if jobs.pause(what, name, by=str(request.user), using=actions.database()):
        return messages.SUCCESS, _("Paused %s. Workers notice within ten seconds.") % name
    return messages.WARNING, _("Already paused: %s.") % name


def _resume(request: HttpRequest, name: str) -> tuple[int, str]:
    # Also for specs and providers that are no longer declared: their pauses can be removed.
    what = request.POST.get("what", "")
    if what not in Pause.What.values:
        raise Http404
    if jobs.resume(what, name, using=actions.database()):
        return messages.SUCCESS, _("Resumed %s. Workers notice within ten seconds.") % name
    return messages.WARNING, _("Not paused: %s.") % name


def _probe(request: HttpRequest, name: str) -> tuple[int, str]:
    if name not in conf.current().declared:
        raise Http404
    try:
        provider = providers.get(name)
    except ImproperlyConfigured as error:
        return messages.ERROR, str(error)
    # Django capitalizes a message's first letter: do not begin with an alias or a model's name.
    who = _("The provider %(alias)s (%(model)s)") % {"alias": name, "model": provider.model}
    try:
        probe = _within(PROBE_SECONDS, provider.probe)
    except ProviderError as error:
        return messages.ERROR, f"{who}: {error}"
    if probe is None:
        return messages.ERROR, _("%(provider)s did not answer within %(seconds)d s.") % {
            "provider": who,
            "seconds": PROBE_SECONDS,
        }
    if not probe.ok:
        return messages.ERROR, f"{who}: {probe.message} {probe.doubt}".rstrip()
    answered = _("%(provider)s answered in %(ms)d ms with %(width)d dimensions.") % {
        "provider": who,
        "ms": probe.seconds * 1000,
        "width": probe.width,
    }
    return (
        messages.WARNING if probe.doubt else messages.SUCCESS
    ), f"{answered} {probe.doubt}".rstrip()


def _within(seconds: float, look: Callable[[], Probe]) -> Probe | None:
    """Return the probe, or None if it takes longer. Its thread then ends by itself later.

    Raises:
        ProviderUnavailable: this process can start no thread.
    """
    threads = Threads(1, name="pgembed-probe")
    try:
        found: Future[Probe] = threads.submit(look)
        return found.result(seconds)
    except TimeoutError:
        return None
    finally:
        threads.shutdown(wait=False)


VERBS: dict[str, Callable[[HttpRequest, str], tuple[int, str]]] = {
    "pause": _pause,
    "resume": _resume,
    "probe": _probe,
}
