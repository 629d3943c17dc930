"""What a person does to jobs and tasks: one transaction for each, for two seconds, then the rest.

A request works for ``MAX_SECONDS``. The page that follows says what was done and how many are
left, with a button for the rest. The server keeps no state.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.views.main import PAGE_VAR
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import DataError
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.text import Truncator, format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from pgembed_django import conf
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Task
from pgembed_django.models.job import OPEN_FAILURE, PENDING, RUNNING, UNSETTLED, shown_database
from pgembed_django.queue import jobs
from pgembed_django.spaces import backfill, reconcile, reembedding

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

    from pgembed_django.admin.triage import TriageAdmin

MAX_SECONDS = 2.0
"""How long one request works."""

MAX_JOBS = 10_000
"""How many jobs a request reads at most. It has no time for so many."""

MAX_COUNT = 100_000
"""Counts of what is left stop here, and the page says "more than"."""

ROWS_AT_ONCE = 100
"""After how many source rows the time is checked."""

Row = Job | Task

Counts = Mapping[str, int]
"""How many jobs or tasks had which result, by the keys of ``RESULTS``."""

RESULTS: dict[str, _StrPromise] = {
    "retried": ngettext_lazy("%d job retried", "%d jobs retried"),
    "dismissed": ngettext_lazy("%d job dismissed", "%d jobs dismissed"),
    "reembedded": gettext_lazy("%d queued to be embedded again"),
    "released": ngettext_lazy("%d job released", "%d jobs released"),
    "canceled": ngettext_lazy("%d job canceled", "%d jobs canceled"),
    "asked": gettext_lazy("%d running asked to stop"),
    "forward": gettext_lazy("%d made due now"),
    "failed": ngettext_lazy("%d job failed with it", "%d jobs failed with it"),
    "superseded": gettext_lazy("%d superseded by newer work"),
    "gone": gettext_lazy("%d already settled or deleted"),
    "busy": gettext_lazy("%d locked by an open write (try again)"),
    "unchecked": gettext_lazy("%d not checked yet"),
    "unchanged": gettext_lazy("%d left unchanged"),
}
OF_TASKS: dict[str, _StrPromise] = {
    "retried": ngettext_lazy("%d task retried", "%d tasks retried"),
    "dismissed": ngettext_lazy("%d task dismissed", "%d tasks dismissed"),
    "released": ngettext_lazy("%d task released", "%d tasks released"),
    "canceled": ngettext_lazy("%d task canceled", "%d tasks canceled"),
    "asked": ngettext_lazy("%d running task asked to stop", "%d running tasks asked to stop"),
    "forward": ngettext_lazy("%d task made due now", "%d tasks made due now"),
    "failed": ngettext_lazy("%d task failed with it", "%d tasks failed with it"),
}
NOTHING_DONE = {"gone", "busy", "unchecked", "unchanged"}


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do to a job or task. ``run`` takes it and an alias, and returns the result.

    ``condition`` selects those that it applies to.
    """

    permission: str
    title: _StrPromise
    explained: _StrPromise
    condition: Q
    run: Callable[[Any, str], str]
    of: type[Row] = Job
    is_nudging: bool = False
    """Whether workers are to be woken afterwards."""

    def is_allowed(self, request: HttpRequest) -> bool:
        """Return whether the viewer may do this."""
        return request.user.has_perm(f"pgembed.{self.permission}_{self.of._meta.model_name}")


def _retry(job: Job, using: str) -> str:
    priorities = specs.priorities()
    return result(jobs.retry_failed([job.pk], using=using, priorities=priorities, wakes=False))


def _dismiss(job: Job, using: str) -> str:
    return result(jobs.dismiss([job.pk], using=using))


def _release(job: Job, using: str) -> str:
    max_crashes = conf.current().max_crashes
    return result(jobs.reap_held([job.pk], max_crashes=max_crashes, using=using))


def result(counts: Counter[str]) -> str:
    """Return the result of a verb that was given one id."""
    [only] = counts
    return only


def _reembed(job: Job, using: str) -> str:
    spec = specs.get(job.spec)
    if spec is None:
        return "unchanged"
    try:
        done = reembedding.reembed(spec, [job.source_pk], using=using)
    except DataError:
        # A key that is not of the key's type: typed by hand, or another field was the key before.
        return "unchanged"
    return "busy" if done.busy else "reembedded"


ACTIONS = {
    "retry": Action(
        permission="retry",
        title=gettext_lazy("Retry"),
        explained=gettext_lazy(
            "Each gets a new job with no attempts spent. If newer work of a unit is already "
            "waiting, that is made due now instead."
        ),
        condition=UNSETTLED | (PENDING & Q(run_at__gt=Now())),
        run=_retry,
        is_nudging=True,
    ),
    "dismiss": Action(
        permission="dismiss",
        title=gettext_lazy("Dismiss"),
        explained=gettext_lazy(
            "They leave the list of failures. Their units are parked for a week, unless the row "
            "is written or the job is retried."
        ),
        condition=OPEN_FAILURE,
        run=_dismiss,
    ),
    "reembed": Action(
        permission="operate",
        title=gettext_lazy("Re-embed"),
        explained=gettext_lazy(
            "Their text is sent to the provider again, although it has not changed. Searches use "
            "the stored vectors until the new ones are there."
        ),
        condition=Q(),
        run=_reembed,
    ),
    "release": Action(
        permission="operate",
        title=gettext_lazy("Release"),
        explained=gettext_lazy(
            "For a worker that is dead. Each job counts a crash, and is claimed alone next time. "
            "If the worker is still alive, its results are discarded."
        ),
        condition=RUNNING,
        run=_release,
    ),
}


def work_through(
    action: Action,
    found: Sequence[Any],
    *,
    using: str,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Counter[str], Sequence[Any]]:
    """Act on one job after the other for ``MAX_SECONDS``. Return the counts, and the jobs left.

    One transaction per job: a statement over many would lock rows in another order than writers.
    """
    ends_at = clock() + MAX_SECONDS
    counts: Counter[str] = Counter()
    left: Sequence[Any] = ()
    for done, job in enumerate(found):
        if done and clock() >= ends_at:
            left = found[done:]
            break
        counts[action.run(job, using)] += 1
    if action.is_nudging:
        jobs.nudge(using=using)
    return counts, left


def summary(counts: Counts, *, of: type[Row] = Job) -> str:
    """Return the results in words, without those that are zero."""
    results = RESULTS | OF_TASKS if of is Task else RESULTS
    said = [str(text % counts[name]) for name, text in results.items() if counts.get(name)]
    return f"{', '.join(said) or _('nothing to do')}."


def level(counts: Counts) -> int:
    """Return the message level for the results: a warning if nothing was done."""
    is_done = any(count for name, count in counts.items() if name not in NOTHING_DONE)
    return messages.SUCCESS if is_done else messages.WARNING


def log(
    request: HttpRequest, message: str, *, about: Sequence[Row] | str, of: type[Row] = Job
) -> None:
    """Write to the admin's log: an entry per job, or a single entry if ``about`` is a name."""
    named: list[tuple[str | None, str]]
    named = (
        [(None, about)] if isinstance(about, str) else [(str(job.pk), str(job)) for job in about]
    )
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=request.user.pk or 0,
            content_type=ContentType.objects.get_for_model(of),
            object_id=object_id,
            object_repr=name[:200],
            action_flag=CHANGE,
            change_message=message,
        )
        for object_id, name in named
    )


def for_list(name: str, action: Action) -> Any:
    """Return the action of a list: for the selected jobs or tasks, or for all that match."""

    def act(
        model_admin: TriageAdmin[Any], request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponse:
        return _act(model_admin, request, queryset, name)

    act.__name__ = name
    selected = gettext_lazy("{} selected {}")
    described = format_lazy(selected, action.title, action.of._meta.verbose_name_plural)
    return admin.action(act, permissions=[action.permission], description=described)


def _act(
    model_admin: TriageAdmin[Any], request: HttpRequest, queryset: QuerySet[Any], name: str
) -> HttpResponse:
    """Act on the selected jobs, or after a question on all that match.

    For all that match, the form holds ``end``, the newest job when the question was asked, so that
    later ones are left out, and ``after``, the last job that was acted on.
    """
    action, using, of = model_admin.verbs[name], queryset.db, model_admin.model
    query = request.GET.copy()
    query.pop(PAGE_VAR, None)  # there may be fewer pages afterwards
    here = f"{request.path}?{query.urlencode()}"
    found = queryset.filter(action.condition).order_by("pk")
    form: list[tuple[str, object]] = [("action", name)]
    # As Django's own form reads it: all that match are then in the queryset.
    if request.POST.get("select_across", "0").lower() in ("", "0", "false"):
        chosen, listed = set(request.POST.getlist(ACTION_CHECKBOX_NAME)), queryset.count()
        acted_on = list(found)
        counts, rest = work_through(action, acted_on, using=using)
        # Selected jobs that the filter no longer shows count as gone.
        counts["gone"] += len(chosen) - listed
        counts["unchanged"] += listed - len(acted_on)
        form += [(ACTION_CHECKBOX_NAME, job.pk) for job in rest]
        about = _("Selected %s") % model_admin.opts.verbose_name_plural
        left, back = len(rest), here
    else:
        try:
            after, end = int(request.POST.get("after", 0)), int(request.POST.get("end", 0))
        except ValueError as error:
            raise BadRequest from error
        newest = of.objects.using(using).order_by("-pk").values_list("pk", flat=True).first()
        counts, rest, acted_on = None, (), []
        if "end" in request.POST:
            acted_on = list(found.filter(pk__gt=after, pk__lte=end)[:MAX_JOBS])
            counts, rest = work_through(action, acted_on, using=using)
            after = acted_on[-len(rest) - 1].pk if acted_on else after
        end = end or newest or 0
        form += [
            ("select_across", 1),
            (ACTION_CHECKBOX_NAME, "all"),
            ("after", after),
            ("end", end),
        ]
        left = _count(found.filter(pk__gt=after, pk__lte=end))
        values = ", ".join(Truncator(str(value)).chars(80) for value in query.dict().values())
        every = _("All %s") % model_admin.opts.verbose_name_plural
        about = _("All that match: %s") % values if values else every
        back = _url(model_admin, "failures") if "signature" in query else here
    if counts is not None:
        done = acted_on[: len(acted_on) - len(rest)]
        log(request, summary(counts, of=of), about=done, of=of)
    return _answer(
        model_admin,
        request,
        action,
        counts=counts,
        left=left,
        noun=ngettext("%s task", "%s tasks", left)
        if of is Task
        else ngettext("%s job", "%s jobs", left),
        about=about,
        url=here,
        form=form,
        back=back,
    )


def reembed_rows(model_admin: TriageAdmin[Any], request: HttpRequest) -> HttpResponse:
    """Re-embed all rows of a spec. This is the backfill that ``embed_backfill --force`` runs.

    It resumes where it stopped. Once ``end`` is no longer the end of the last run, the present one
    was completed elsewhere, and the button for the rest must not start another.
    """
    action = ACTIONS["reembed"]
    if not (model_admin.has_view_permission(request) and action.is_allowed(request)):
        raise PermissionDenied
    spec = specs.get(request.GET.get("spec", ""))
    if spec is None:
        raise Http404
    run = backfill.Backfill(spec, using=shown_database(), where=(), force=True)
    about = _("All rows of %s") % spec.key
    end = request.POST.get("end", run.ended)
    counts: Counter[str] | None = None
    is_over, note = False, ""
    if request.method == "POST":
        counts = Counter()
        ends_at = time.monotonic() + MAX_SECONDS
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
            if step.is_in_vain or time.monotonic() >= ends_at:
                break
        if counts:
            log(request, summary(counts), about=about)
    elif run.resumed_from is not None:
        note = _("An earlier run stopped after row %s. This continues it.") % run.resumed_from
    left = 0 if is_over else _count(run.keys_left) + len(run.left)
    return _answer(
        model_admin,
        request,
        action,
        counts=counts,
        left=left,
        noun=ngettext("%s row", "%s rows", left),
        about=about,
        note=note,
        url=request.get_full_path(),
        form=[("end", end)],
        back=reverse(f"{model_admin.admin_site.name}:app_list", args=["pgembed"]),
    )


def _count(found: QuerySet[Any, Any]) -> int:
    return found.order_by()[: MAX_COUNT + 1].count()


def _answer(
    model_admin: TriageAdmin[Any],
    request: HttpRequest,
    action: Action,
    *,
    counts: Counts | None,
    left: int,
    noun: str,
    back: str,
    **context: object,
) -> HttpResponse:
    """Ask (no ``counts`` yet), offer to do the rest, or go ``back`` with a message."""
    said = "" if counts is None else summary(counts, of=action.of)
    if counts is not None and not left:
        model_admin.message_user(request, said, level(counts))
        return HttpResponseRedirect(back)
    number = f"{min(left, MAX_COUNT):,}"
    amount = noun % (_("more than %s") % number if left > MAX_COUNT else number)
    context |= {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": _("%s left") % amount if said else f"{action.title} {amount}?",
        "action": action,
        "left": left,
        "said": said,
        "back": back,
    }
    return TemplateResponse(request, "admin/pgembed/action.html", context)


def _url(model_admin: TriageAdmin[Any], name: str) -> str:
    of = model_admin.opts.model_name
    return reverse(f"{model_admin.admin_site.name}:pgembed_{of}_{name}")
