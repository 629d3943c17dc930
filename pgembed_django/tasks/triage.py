"""What a person does to tasks: retry, run now, cancel. Dismiss and release are those of the queue.

A failed task goes back to pending in place, as its arguments stand nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from django.db.models.functions import Now

from pgembed_django.core import database
from pgembed_django.models import Task
from pgembed_django.models.job import PENDING
from pgembed_django.queue import jobs
from pgembed_django.tasks import canceling
from pgembed_django.tasks.table import TASKS

# A pending one of its key goes on in its place.
SETTLE_SUPERSEDED = TASKS("""
    UPDATE pgembed_job AS job
    SET settled_at = statement_timestamp()
    WHERE id = %(id)s
      AND status IN ('failed', 'dismissed')
      AND settled_at IS NULL
      AND EXISTS (
          SELECT
          FROM pgembed_job AS newer
          WHERE newer.status = 'pending'
            AND {newer}
      )
""")

# Its schedule has gone on: it is no run of it any more. Its batch waits for it again, if that has
# not ended, and its key is kept until it ends again: both by the trigger on ends.
RETRY = """
    UPDATE pgembed_task
    SET
        status = 'pending',
        attempts = 0,
        crashes = 0,
        outages = 0,
        run_at = statement_timestamp(),
        finished_at = NULL,
        signature = '',
        is_scheduled = false,
        cancel_asked_at = NULL
    WHERE id = %(id)s
      AND status IN ('failed', 'dismissed')
      AND settled_at IS NULL
"""


def retry_failed(task_ids: Iterable[int], *, using: str, wakes: bool = True) -> Counter[str]:
    """Run failed and dismissed tasks afresh.

    Returns how many were ``retried``, ``superseded``, ``gone`` and ``busy``. Without ``wakes`` the
    caller nudges the workers, once for several calls.
    """

    def retry(task_id: int) -> str:
        if database.execute(using, SETTLE_SUPERSEDED, id=task_id):
            return "superseded"
        return "retried" if database.execute(using, RETRY, id=task_id) else "gone"

    counts = jobs.each(task_ids, retry, using=using)
    if wakes:
        jobs.nudge(using=using)
    return counts


def run_now(task_ids: Iterable[int], *, using: str, wakes: bool = True) -> Counter[str]:
    """Make tasks due that wait for their time or back off.

    Returns how many were brought ``forward``, ``gone`` and ``busy``.
    """

    def bring_forward(task_id: int) -> str:
        waiting = Task.objects.using(using).filter(PENDING, pk=task_id, run_at__gt=Now())
        is_forward = waiting.update(run_at=Now(), attempts=0, crashes=0, outages=0)
        return "forward" if is_forward else "gone"

    counts = jobs.each(task_ids, bring_forward, using=using)
    if wakes:
        jobs.nudge(using=using)
    return counts


def cancel(task_ids: Iterable[int], *, using: str) -> Counter[str]:
    """Cancel tasks: delete pending ones, and ask running ones to stop.

    Returns how many were ``canceled``, ``asked``, ``gone`` and ``busy``.
    """
    return jobs.each(task_ids, partial(canceling.cancel_one, using=using), using=using)
