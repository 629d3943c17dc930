"""What a person can do to jobs, one transaction per job, and what came of it in words. No pages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import DataError
from django.db.models import Q
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.translation import gettext_lazy, ngettext_lazy

from pgembed_django import conf, reembedding, specs
from pgembed_django.models import Job
from pgembed_django.models.job import OPEN_FAILURE, PENDING, RUNNING, UNSETTLED
from pgembed_django.models.shown import shown_database
from pgembed_django.queue import jobs

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

MAX_SECONDS = 2.0
"""How long one request works through jobs. A page then offers a button for the rest."""

Counts = Mapping[str, int]
"""How many jobs had which result, by the keys of ``RESULTS``."""

RESULTS: dict[str, _StrPromise] = {
    "retried": ngettext_lazy("%d job retried", "%d jobs retried"),
    "dismissed": ngettext_lazy("%d job dismissed", "%d jobs dismissed"),
    "reembedded": gettext_lazy("%d queued to be embedded again"),
    "released": ngettext_lazy("%d job released", "%d jobs released"),
    "forward": gettext_lazy("%d made due now"),
    "failed": ngettext_lazy("%d job failed with it", "%d jobs failed with it"),
    "superseded": gettext_lazy("%d superseded by newer work"),
    "gone": gettext_lazy("%d already settled or deleted"),
    "busy": gettext_lazy("%d locked by an open write (try again)"),
    "unchecked": gettext_lazy("%d not checked yet"),
    "unchanged": gettext_lazy("%d left unchanged"),
}
NOTHING_DONE = ("gone", "busy", "unchecked", "unchanged")


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do to a job. ``run`` takes a job id and an alias, and returns the result.

    ``condition`` selects the jobs that it applies to. ``status`` is the one to take all jobs of
    where a person has chosen none, so that it is never the whole table.
    """

    permission: str
    title: _StrPromise
    selected: _StrPromise
    question: _StrPromise
    the_rest: _StrPromise
    explained: _StrPromise
    counted_as: str
    condition: Q
    run: Callable[[int, str], str]
    status: str = "failed"

    def is_allowed(self, request: HttpRequest) -> bool:
        """Return whether the viewer may do this."""
        return request.user.has_perm(f"pgembed.{self.permission}_job")


def _retry(job_id: int, using: str) -> str:
    priorities = specs.priorities()
    return _result(jobs.retry_failed([job_id], using=using, priorities=priorities, wakes=False))


def _dismiss(job_id: int, using: str) -> str:
    return _result(jobs.dismiss([job_id], using=using))


def _release(job_id: int, using: str) -> str:
    max_crashes = conf.current().max_crashes
    return _result(jobs.reap_held([job_id], max_crashes=max_crashes, using=using))


def _result(counts: Counter[str]) -> str:
    [result] = counts
    return result


def _reembed(job_id: int, using: str) -> str:
    job = Job.objects.using(using).filter(pk=job_id).first()
    if job is None:
        return "gone"
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
        selected=gettext_lazy("Retry selected"),
        question=gettext_lazy("Retry %(count)s?"),
        the_rest=gettext_lazy("Retry the rest"),
        explained=gettext_lazy(
            "Each gets a new job with no attempts spent. If newer work of a unit is already "
            "waiting, that is made due now instead."
        ),
        counted_as="retried",
        condition=UNSETTLED | (PENDING & Q(run_at__gt=Now())),
        run=_retry,
    ),
    "dismiss": Action(
        permission="dismiss",
        title=gettext_lazy("Dismiss"),
        selected=gettext_lazy("Dismiss selected failures"),
        question=gettext_lazy("Dismiss %(count)s?"),
        the_rest=gettext_lazy("Dismiss the rest"),
        explained=gettext_lazy(
            "They leave the list of failures. Their units are parked for a week, unless the row "
            "is written or the job is retried."
        ),
        counted_as="dismissed",
        condition=OPEN_FAILURE,
        run=_dismiss,
    ),
    "reembed": Action(
        permission="operate",
        title=gettext_lazy("Re-embed"),
        selected=gettext_lazy("Re-embed selected units"),
        question=gettext_lazy("Re-embed %(count)s?"),
        the_rest=gettext_lazy("Re-embed the rest"),
        explained=gettext_lazy(
            "Their text is sent to the provider again, although it has not changed. Searches use "
            "the stored vectors until the new ones are there."
        ),
        counted_as="reembedded",
        condition=Q(),
        run=_reembed,
    ),
    "release": Action(
        permission="operate",
        title=gettext_lazy("Release"),
        selected=gettext_lazy("Release from a dead worker"),
        question=gettext_lazy("Take %(count)s from the worker?"),
        the_rest=gettext_lazy("Release the rest"),
        explained=gettext_lazy(
            "For a worker that is dead. Each job counts a crash, and is claimed alone next time. "
            "If the worker is still alive, its results are discarded."
        ),
        counted_as="released",
        condition=RUNNING,
        run=_release,
        status="running",
    ),
}


def database() -> str:
    """Return the alias of the database that the admin pages read from and write to."""
    return shown_database()


def work_through(
    action: Action,
    job_ids: Sequence[int],
    *,
    using: str,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Counter[str], Sequence[int]]:
    """Act on one job after the other for ``MAX_SECONDS``. Return the counts, and the jobs left.

    One transaction per job: a statement over many would lock rows in another order than writers.
    """
    ends_at = clock() + MAX_SECONDS
    counts: Counter[str] = Counter()
    left: Sequence[int] = ()
    for done, job_id in enumerate(job_ids):
        if done and clock() >= ends_at:
            left = job_ids[done:]
            break
        counts[action.run(job_id, using)] += 1
    if action.counted_as == "retried":
        jobs.nudge(using=using)
    return counts, left


def summary(action: Action, counts: Counts) -> str:
    """Return the results in words: first the action's own count, then all others above zero."""
    first = action.counted_as
    names = [first, *(name for name in RESULTS if name != first and counts.get(name))]
    return ", ".join(str(RESULTS[name] % counts.get(name, 0)) for name in names) + "."


def level(counts: Counts) -> int:
    """Return the message level for the results: a warning if nothing was done."""
    is_done = any(count for name, count in counts.items() if name not in NOTHING_DONE)
    return messages.SUCCESS if is_done else messages.WARNING


def log(request: HttpRequest, message: str, *, about: Iterable[Job] | str) -> None:
    """Write to the admin's log: one entry per job, or a single entry if ``about`` is a name."""
    content_type = ContentType.objects.get_for_model(Job)
    entries = (
        [(None, about)] if isinstance(about, str) else [(str(job.pk), str(job)) for job in about]
    )
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=request.user.pk or 0,
            content_type=content_type,
            object_id=object_id,
            object_repr=name[:200],
            action_flag=CHANGE,
            change_message=message,
        )
        for object_id, name in entries
    )
