"""What a person does: retry, dismiss or release jobs, pause, rename or forget a whole spec.

A job that a writer has locked is not waited for, but counted as busy.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

from django.db.models.functions import Now

from pgembed_django.core import database
from pgembed_django.models.attempt import Attempt
from pgembed_django.models.job import OPEN_FAILURE, PENDING, UNSETTLED, Ending, Job, Ripple
from pgembed_django.models.operations import Pause
from pgembed_django.queue.jobs.enqueueing import DUE_NOW, nudge
from pgembed_django.queue.jobs.leases import JOBS, Table, claims
from pgembed_django.queue.jobs.settling import MAX_PARKING_SECONDS, reap_one

# Replaces the failure by a pending job, or makes the unit's pending job due now. A gap's row was
# not written, so its job stays one that nobody waits for, and the row is not hidden.
FROM_FAILURE = """
    WITH failure AS (
        UPDATE pgembed_job
        SET settled_at = statement_timestamp()
        WHERE id = %(id)s
          AND status IN ('failed', 'dismissed')
          AND settled_at IS NULL
        RETURNING spec, source_pk, CASE WHEN is_awaited THEN %(kind)s ELSE kind END, is_awaited
    )
    INSERT INTO pgembed_job AS job (spec, source_pk, kind, is_awaited, priority)
    SELECT failure.*, COALESCE((%(priorities)s::jsonb ->> failure.spec)::int, 0)
    FROM failure
    ON CONFLICT (spec, source_pk) WHERE status = 'pending'
"""
IS_NEW = """
    RETURNING (xmax = 0) AS is_new
"""
RETRY = FROM_FAILURE + DUE_NOW + IS_NEW

HELD = """
    SELECT {columns}
    FROM pgembed_job AS job
    WHERE status = 'running'
      AND id = %(id)s
"""


def retry_failed(
    job_ids: Iterable[int],
    *,
    using: str,
    priorities: Mapping[str, int] | None = None,
    wakes: bool = True,
) -> Counter[str]:
    """Retry failed and dismissed units from the start, and make jobs in backoff due now.

    Returns how many were ``retried``, ``superseded``, brought ``forward``, ``gone`` and ``busy``.
    ``priorities``: those of the specs that have one, by key. Without ``wakes`` the caller nudges
    the workers, once for several calls.
    """

    def retry(job_id: int) -> str:
        given = {"kind": Job.Kind.MANUAL_RETRY, "priorities": json.dumps(dict(priorities or {}))}
        if started := database.rows(using, RETRY, id=job_id, **given):
            return "retried" if started == [(True,)] else "superseded"
        waiting = Job.objects.using(using).filter(PENDING, pk=job_id, run_at__gt=Now())
        is_forward = waiting.update(run_at=Now(), attempts=0, crashes=0, outages=0)
        return "forward" if is_forward else "gone"

    counts = each(job_ids, retry, using=using)
    if wakes:
        nudge(using=using)
    return counts


def dismiss(job_ids: Iterable[int], *, using: str, table: Table = JOBS) -> Counter[str]:
    """Dismiss open failures. Returns how many were ``dismissed``, ``gone`` and ``busy``.

    Their units are parked for the longest time, or the reconciler would soon bring them back.
    """

    def dismiss_one(job_id: int) -> str:
        failure = table.model.objects.using(using).filter(OPEN_FAILURE, pk=job_id)
        parked_until = Now() + timedelta(seconds=MAX_PARKING_SECONDS)
        is_done = failure.update(status=Job.Status.DISMISSED, run_at=parked_until)
        return "dismissed" if is_done else "gone"

    return each(job_ids, dismiss_one, using=using)


def reap_held(
    job_ids: Iterable[int], *, max_crashes: int, using: str, table: Table = JOBS
) -> Counter[str]:
    """Take jobs from a worker that a person believes dead, and count a crash of each.

    If the worker is still alive, it has lost these jobs, and its results are discarded. Returns
    how many were ``released``, ``failed``, ``superseded``, ``gone`` and ``busy``.
    """

    def reap(job_id: int) -> str:
        held = claims(HELD, using=using, table=table, id=job_id)
        endings = (
            reap_one(claim, max_crashes=max_crashes, using=using, table=table) for claim in held
        )
        ending = next(endings, Ending.LOST)
        return {Ending.REQUEUED: "released", Ending.LOST: "gone"}.get(ending, ending.value)

    counts = each(job_ids, reap, using=using)
    nudge(using=using)
    return counts


def each(job_ids: Iterable[int], act: Callable[[int], str], *, using: str) -> Counter[str]:
    """Act on each job, in a transaction of its own, and count the results.

    One that an open transaction has locked is ``busy``.

    A bulk delete settles failures in its own order: to wait for one of them while holding another
    could deadlock with it.
    """
    counts: Counter[str] = Counter()
    for job_id in job_ids:
        try:
            with database.giving_way(using, wait=database.BRIEFLY):
                result = act(job_id)
        except database.Busy:
            result = "busy"
        counts[result] += 1
    return counts


# Whole specs. Workers read what is paused every few seconds, and claim only other jobs.


class Paused(NamedTuple):
    """The paused specs, by key, and providers, by alias, each with the name of who paused it."""

    specs: dict[str, str]
    providers: dict[str, str]


def pause(what: str, name: str, *, by: str, using: str) -> bool:
    """Pause a spec or a provider. Returns False if it was paused already."""
    pauses = Pause.objects.using(using)
    if pauses.filter(what=Pause.What(what), name=name).exists():
        return False
    pauses.bulk_create([Pause(what=Pause.What(what), name=name, by=by)], ignore_conflicts=True)
    return True


def resume(what: str, name: str, *, using: str) -> bool:
    """End the pause of a spec or a provider. Returns False if it was not paused."""
    paused = Pause.objects.using(using).filter(what=Pause.What(what), name=name)
    is_resumed = database.delete(paused)
    if is_resumed:
        nudge(using=using)  # a worker that is awake looks within seconds
    return is_resumed > 0


def paused(*, using: str) -> Paused:
    """Return what is paused now."""
    found = Paused({}, {})
    for what, name, by in Pause.objects.using(using).values_list("what", "name", "by"):
        (found.specs if what == Pause.What.SPEC else found.providers)[name] = by
    return found


COPIED = """
    WITH unfinished AS (
        SELECT *
        FROM pgembed_job
        WHERE spec = %(old)s
          AND status IN ('pending', 'running')
    )
"""
# Running jobs, too: their workers still use the former name, whose table is gone.
MOVED = """
    WITH unfinished AS (
        DELETE FROM pgembed_job
        WHERE spec = %(old)s
          AND status IN ('pending', 'running')
        RETURNING *
    )
"""
# DO NOTHING: a pending job that a writer has left under the new name is newer.
UNDER_THE_NEW_NAME = """
    INSERT INTO pgembed_job (
        spec, source_pk, kind, is_awaited, priority, attempts, crashes, outages, parkings,
        last_error, run_at, created_at, traceparent
    )
    SELECT DISTINCT ON (source_pk)
        %(new)s, source_pk, kind, is_awaited, priority, attempts, crashes, outages, parkings,
        last_error, run_at, created_at, traceparent
    FROM unfinished
    ORDER BY source_pk, status
    ON CONFLICT (spec, source_pk) WHERE status = 'pending' DO NOTHING
"""


def share(old: str, new: str, *, using: str) -> None:
    """Copy a spec's unfinished jobs to another one, if the old name may stand for either."""
    database.execute(using, COPIED + UNDER_THE_NEW_NAME, old=old, new=new)


def rename(old: str, new: str, *, using: str) -> None:
    """Move a spec's jobs, their history and its pause to its new name."""
    database.execute(using, MOVED + UNDER_THE_NEW_NAME, old=old, new=new)
    failures = Job.objects.using(using).filter(UNSETTLED)
    newer = failures.filter(spec=new).values("source_pk")
    failures.filter(spec=old).exclude(source_pk__in=newer).update(spec=new)
    failures.filter(spec=old).update(settled_at=Now())
    for model in (Attempt, Ripple):
        model._base_manager.using(using).filter(spec=old).update(spec=new)
    pauses = Pause.objects.using(using).filter(what=Pause.What.SPEC)
    if not pauses.filter(name=new).exists():
        pauses.filter(name=old).update(name=new)
    database.delete(pauses.filter(name=old))


BATCH = 5000
"""How many jobs of a spec that is gone are deleted in one transaction."""


def forget(spec: str, *, using: str) -> None:
    """Delete all jobs of a spec, their history and its pause, in small batches.

    Raises:
        database.Busy: an open transaction has locked some of them.
    """
    for model in (Job, Attempt, Ripple):
        rows, after = model._base_manager.using(using).filter(spec=spec), 0
        # By the primary key, as no index covers the specs of all jobs: it would not pay.
        while found := list(
            rows.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:BATCH]
        ):
            with database.giving_way(using):
                rows.filter(pk__in=found).delete()
            after = found[-1]
    Pause.objects.using(using).filter(what=Pause.What.SPEC, name=spec).delete()
