"""Delete old finished jobs and dead workers' rows, and fail the jobs of specs that are gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Now

from pgembed_django.core import database
from pgembed_django.models.attempt import Attempt
from pgembed_django.models.job import DISMISSED, ENDED, OPEN_FAILURE, Job
from pgembed_django.models.operations import Worker
from pgembed_django.models.task import Task
from pgembed_django.queue.jobs.leases import unlocked

KEEP_ATTEMPTS_SECONDS = 7 * 86400


def prune(*, keep_seconds: float, using: str, limit: int = 5000) -> int:
    """Delete a batch each of old finished jobs, of dismissed ones and of the history."""
    jobs, attempts = Job.objects.using(using), Attempt.objects.using(using)
    old = jobs.filter(ENDED, finished_at__lt=Now() - timedelta(seconds=keep_seconds))
    # Their parking is over: the reconciler tries their units again.
    dismissed = jobs.filter(DISMISSED, run_at__lt=Now())
    # A failure that nobody has looked at yet keeps its history.
    unit = OuterRef("spec"), OuterRef("source_pk")
    job = jobs.filter(OPEN_FAILURE, spec=unit[0], source_pk=unit[1])
    task = Task.objects.using(using).filter(OPEN_FAILURE, queue=unit[0], unit=unit[1])
    week_old = Now() - timedelta(seconds=KEEP_ATTEMPTS_SECONDS)
    history = attempts.filter(~Exists(job), ~Exists(task), ended_at__lt=week_old)
    pruned = _delete(old.order_by("finished_at")[:limit]) + _delete(dismissed[:limit])
    return pruned + _delete(history.order_by("ended_at")[:limit])


def forget_dead_workers(*, silent_seconds: float, using: str) -> int:
    """Delete the rows of workers that have not reported for this long."""
    silent = Now() - timedelta(seconds=silent_seconds)
    return database.delete(Worker.objects.using(using).filter(last_seen_at__lt=silent))


def _delete(rows: QuerySet[Any]) -> int:
    with transaction.atomic(using=rows.db):
        return database.delete(unlocked(rows))


# During a deploy another worker may know the spec, so its jobs wait for an hour first. Each unit
# has one open failure at most: if it has an older one, that is the one that stays open.
FAIL_UNKNOWN = """
    UPDATE pgembed_job AS job
    SET
        status = 'failed',
        finished_at = statement_timestamp(),
        settled_at = CASE
            WHEN EXISTS (
                SELECT
                FROM pgembed_job AS older
                WHERE older.spec = job.spec
                  AND older.source_pk = job.source_pk
                  AND older.status IN ('failed', 'dismissed')
                  AND older.settled_at IS NULL
            )
            THEN statement_timestamp()
        END,
        last_error = 'No spec named ' || spec || ': its model or its @embeddable is gone.',
        signature = 'No such spec: its model or its @embeddable is gone.'
    WHERE id = ANY(ARRAY(
        SELECT id
        FROM pgembed_job AS unknown
        WHERE status = 'pending'
          AND spec <> ALL(%(specs)s)
          AND created_at < statement_timestamp() - interval '1 hour'
          AND NOT EXISTS (SELECT FROM pgembed_worker WHERE specs ? unknown.spec)
        LIMIT 1000
        FOR UPDATE SKIP LOCKED
    ))
"""


def fail_unknown(known_specs: Sequence[str], *, using: str) -> int:
    """Fail old jobs of specs that neither this process nor a live worker knows."""
    try:
        with database.giving_way(using):
            return database.execute(using, FAIL_UNKNOWN, specs=list(known_specs))
    except (database.Busy, IntegrityError):
        return 0  # another transaction has locked one of them: try next time
