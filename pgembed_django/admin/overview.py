"""The overview with its charts and buttons, and the page of failures by kind of error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import router
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _

from pgembed_django import conf, providers
from pgembed_django.admin.actions import ACTIONS, log
from pgembed_django.core.moments import seconds_between
from pgembed_django.core.threads import Threads
from pgembed_django.declaration import specs
from pgembed_django.exceptions import ProviderError
from pgembed_django.models import Pause, Task
from pgembed_django.models.job import shown_database
from pgembed_django.ops import status
from pgembed_django.ops.formatting import duration as in_words
from pgembed_django.ops.status import SEVERITY, Point, QueueStatus, SpecStatus
from pgembed_django.providers import Probe
from pgembed_django.queue import jobs
from pgembed_django.tasks import backend
from pgembed_django.tasks.table import TASKS

if TYPE_CHECKING:
    from pgembed_django.admin.triage import TriageAdmin

MAX_KIND_COUNT = 5000
"""Counts of a kind of failure stop here, as "5,000+". The confirmation page counts further."""

PROBE_SECONDS = 5.0
"""How long a page waits for a probe: the provider's own time-out may be minutes."""


def of(request: HttpRequest) -> dict[str, Any] | None:
    """Return the template's context, or None if the viewer may view neither jobs nor tasks."""
    sees_jobs = request.user.has_perm("pgembed.view_job")
    sees_tasks = request.user.has_perm("pgembed.view_task") and _has_tasks(request)
    if not (sees_jobs or sees_tasks):
        return None
    using = shown_database()
    seen = status.overview(
        using=using, specs=None if sees_jobs else [], queues=None if sees_tasks else []
    )
    hours = 24 if request.GET.get("hours") == "24" else 1
    here = specs.on(using)
    failures = [*(spec.open_failures for spec in seen.specs), *seen.unknown.values()]
    charts = []
    if seen.specs or not seen.queues:
        charts += _charts(status.series(using=using, hours=hours, now=seen.at), hours)
    if seen.queues:
        points = status.series(using=using, hours=hours, now=seen.at, of_tasks=True)
        charts += _charts(points, hours, of_tasks=True)
    return {
        "at": seen.at,
        "sees_jobs": sees_jobs,
        "sees_tasks": sees_tasks,
        # The worst comes first.
        "specs": [
            (spec, [space for space in (spec.active, spec.building) if space])
            for spec in sorted(seen.specs, key=_urgency)
        ],
        "queues": sorted(seen.queues, key=_urgency),
        "unknown": seen.unknown.items() if sees_jobs else (),
        "elsewhere": [
            (router.db_for_write(spec.model), spec.key) for spec in specs.all() if spec not in here
        ],
        "capture": seen.capture,
        "workers": seen.workers,
        "executors": [
            (worker.name, executor)
            for worker in seen.workers
            if worker.is_live
            for executor in worker.executors
        ],
        "providers": [
            (one, one.retries_at and max(0.0, seconds_between(seen.at, one.retries_at)))
            for one in seen.providers
        ],
        "hours": hours,
        "charts": charts,
        "failures": sum(failures, status.Count(0)),
        "failed_tasks": sum((queue.open_failures for queue in seen.queues), status.Count(0)),
        "may_operate": ACTIONS["reembed"].is_allowed(request),
        "may_operate_tasks": request.user.has_perm("pgembed.operate_task"),
    }


def _has_tasks(request: HttpRequest) -> bool:
    """Return whether the admin site has the list of tasks: one of the user's own may not."""
    try:
        reverse("admin:pgembed_task_changelist", current_app=getattr(request, "current_app", None))
    except NoReverseMatch:
        return False
    return True


def _urgency(one: SpecStatus | QueueStatus) -> tuple[int, str]:
    return -SEVERITY[one.verdict.state], one.key


def duration(seconds: float | None) -> str:
    """Return a duration in words, and a dash for None."""
    if seconds is None:
        return "-"
    return in_words(seconds) if seconds >= 0.9995 else f"{seconds * 1000:.0f} ms"


def per_minute(units_per_second: float) -> str:
    """Return units per minute as text: whole numbers, except for rates below ten."""
    rate = units_per_second * 60
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def failures(model_admin: TriageAdmin[Any], request: HttpRequest) -> HttpResponse:
    """Show the open failures by kind of error, the most frequent first."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    spec = request.GET.get("spec")
    found = status.failure_kinds(
        using=shown_database(),
        specs=[spec] if spec else None,
        max_count=MAX_KIND_COUNT,
        table=TASKS if model_admin.model is Task else jobs.JOBS,
    )
    of = f"admin:pgembed_{model_admin.opts.model_name}"
    title = _("Failed tasks") if model_admin.model is Task else _("Failures")
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": _("%(title)s of %(of)s") % {"title": title, "of": spec} if spec else title,
        "found": found,
        "list_url": f"{of}_changelist",
        "page_url": f"{of}_change",
        "actions": [
            (name, model_admin.verbs[name].title)
            for name in ("retry", "dismiss")
            if model_admin.verbs[name].is_allowed(request)
        ],
    }
    return TemplateResponse(request, "admin/pgembed/failures.html", context)


# Charts, as SVG. Their colours are in the style sheet. Each is also described in words.

LEFT, RIGHT, TOP, BOTTOM = 60, 380, 8, 102

Values = Sequence[float | None]
"""One value per bucket of time, oldest first. None: unknown."""


def _charts(points: Sequence[Point], hours: int, *, of_tasks: bool = False) -> list[dict[str, Any]]:
    completed, failed = [one.completed for one in points], [one.failed for one in points]
    p50, p99 = [one.quantile(0.5) for one in points], [one.quantile(0.99) for one in points]
    named = {
        "span": _("last hour") if hours == 1 else _("last day"),
        "each": _("minute") if hours == 1 else _("quarter of an hour"),
        "completed": f"{sum(completed):,}",
        "failed": f"{sum(failed):,}",
        "most": f"{max(completed):,}",
        "slowest": duration(max((value for value in p99 if value is not None), default=None)),
    }
    return [
        {
            "title": (
                _("Tasks completed each %(each)s") if of_tasks else _("Rows embedded each %(each)s")
            )
            % named,
            "described": _("%(completed)s in the %(span)s, at most %(most)s in a %(each)s") % named,
            **chart({"completed": completed}),
        },
        {
            "title": _("From due to start") if of_tasks else _("From write to vector"),
            "described": _("Slowest p99 in the %(span)s: %(slowest)s") % named,
            "legend": ["p50", "p99"],
            **chart({"p99": p99, "p50": p50}, is_duration=True),
        },
        {
            "title": (_("Failed tasks each %(each)s") if of_tasks else _("Failures each %(each)s"))
            % named,
            "described": _("%(failed)s in the %(span)s") % named,
            **chart({"failed": failed}),
        },
    ]


def chart(series: Mapping[str, Values], *, is_duration: bool = False) -> dict[str, Any]:
    """Return the paths of a chart: bars for counts, for durations a line in each bucket."""
    largest = max((value or 0 for values in series.values() for value in values), default=0)
    paths = []
    for name, values in series.items():
        step = (RIGHT - LEFT) / max(len(values), 1)
        drawn = []
        for n, value in enumerate(values):
            x, y = LEFT + n * step, BOTTOM - (BOTTOM - TOP) * (value or 0) / (largest or 1)
            if is_duration and value is not None:
                drawn.append(f"M{x:.1f} {y:.1f}H{x + step:.1f}")
            elif value:
                drawn.append(f"M{x + step / 2:.1f} {BOTTOM}V{y:.1f}")
        width = "2.5" if is_duration else f"{step * 0.8:.1f}"
        paths.append((name, width, "".join(drawn)))
    largest_text = duration(largest) if is_duration else f"{largest:,}"
    return {"paths": paths, "largest": largest_text if largest else ""}


# Buttons


def press(model_admin: TriageAdmin[Any], request: HttpRequest, verb: str) -> HttpResponse:
    """Do one of ``VERBS``, show a message with the result, and redirect to the overview."""
    if verb not in VERBS:
        raise Http404
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    may_operate = model_admin.verbs["release"].is_allowed(request)
    if not (model_admin.has_view_permission(request) and may_operate):
        raise PermissionDenied
    name = request.POST.get("name", "")
    # Each list's page pauses what it lists, and that of jobs also providers.
    is_queue = request.POST.get("what") == Pause.What.SPEC and "." not in name
    if (model_admin.model is Task) != is_queue or (is_queue and verb == "probe"):
        raise Http404
    level, said = VERBS[verb](request, name)
    log(request, said, about=name, of=model_admin.model)
    model_admin.message_user(request, said, level)
    return HttpResponseRedirect(
        reverse(f"{model_admin.admin_site.name}:app_list", args=["pgembed"])
    )


def _pause(request: HttpRequest, name: str) -> tuple[int, str]:
    what = request.POST.get("what")
    is_known = (what == Pause.What.SPEC and (specs.get(name) or name in backend.queues())) or (
        what == Pause.What.PROVIDER and name in conf.current().declared
    )
    if not is_known:
        raise Http404
    if jobs.pause(str(what), name, by=str(request.user), using=shown_database()):
        return messages.SUCCESS, _("Paused %s. Workers notice within ten seconds.") % name
    return messages.WARNING, _("Already paused: %s.") % name


def _resume(request: HttpRequest, name: str) -> tuple[int, str]:
    # Also for specs and providers that are no longer declared: their pauses can be removed.
    what = request.POST.get("what", "")
    if what not in Pause.What.values or "\0" in name:
        raise Http404
    if jobs.resume(what, name, using=shown_database()):
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
    # The thread of a probe that takes longer ends by itself later.
    threads = Threads(1, name="pgembed-probe")
    try:
        found: Future[Probe] = threads.submit(provider.probe)
        probe = found.result(PROBE_SECONDS)
    except ProviderError as error:
        return messages.ERROR, f"{who}: {error}"
    except TimeoutError:
        return messages.ERROR, _("%(provider)s did not answer within %(seconds)d s.") % {
            "provider": who,
            "seconds": PROBE_SECONDS,
        }
    finally:
        threads.shutdown(wait=False)
    if not probe.ok:
        return messages.ERROR, f"{who}: {probe.message} {probe.doubt}".rstrip()
    answered = _("%(provider)s answered in %(ms)d ms with %(width)d dimensions.") % {
        "provider": who,
        "ms": probe.seconds * 1000,
        "width": probe.width,
    }
    level = messages.WARNING if probe.doubt else messages.SUCCESS
    return level, f"{answered} {probe.doubt}".rstrip()


VERBS = {"pause": _pause, "resume": _resume, "probe": _probe}
