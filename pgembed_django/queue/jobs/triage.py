"""What a person does to jobs: retry, dismiss, enqueue again, release.

A job that a writer has locked is not waited for, but counted as ``busy``. Only ``enqueue_again``
waits, for as long as the transaction that it is called in allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from pgembed_django import database
from pgembed_django.models.job import Ending, Job
from pgembed_django.queue.jobs.claims import priority_of
from pgembed_django.queue.jobs.enqueueing import nudge
from pgembed_django.queue.jobs.failing import MAX_PARKING_SECONDS
from pgembed_django.queue.jobs.leases import claims, filled
from pgembed_django.queue.jobs.settling import reap_one

# A pending job comes forward and starts afresh. It keeps its last error, for people to read. What
# was only a gap until now becomes what the person asked for: its row may have been written.
DUE_NOW = """
    ON CONFLICT (spec, source_pk) WHERE status = 'pending'
    DO UPDATE SET
        kind = CASE WHEN excluded.priority > job.priority THEN excluded.kind ELSE job.kind END,
        created_at = CASE
            WHEN excluded.priority > job.priority THEN excluded.created_at
            ELSE job.created_at
        END,
        run_at = LEAST(job.run_at, excluded.run_at),
        priority = GREATEST(job.priority, excluded.priority),
        attempts = 0,
        crashes = 0,
        outages = 0
"""

FROM_FAILURE = """
    WITH failure AS (
        UPDATE pgembed_job
        SET settled_at = statement_timestamp()
        WHERE id = %(id)s
          AND status IN ('failed', 'dismissed')
          AND settled_at IS NULL
        RETURNING spec, source_pk, kind, kind IN ('write', 'manual_retry') AS is_change
    )
    INSERT INTO pgembed_job AS job (spec, source_pk, kind, priority)
    -- A gap's row was not written, so it is not hidden. A write raises the job, and its kind.
    SELECT
        failure.spec,
        failure.source_pk,
        CASE WHEN is_change THEN 'manual_retry' ELSE failure.kind END,
        COALESCE(of_spec.priority, 0) - (NOT is_change)::int
    FROM failure
    LEFT JOIN unnest(%(specs)s::text[], %(priorities)s::int[]) AS of_spec(spec, priority)
      ON of_spec.spec = failure.spec
"""
IS_NEW = """
    RETURNING (xmax = 0) AS is_new
"""

# Replaces the failure by a pending job, or makes the unit's pending job due now.
RETRY = FROM_FAILURE + DUE_NOW + IS_NEW

BRING_FORWARD = """
    UPDATE pgembed_job
    SET
        run_at = statement_timestamp(),
        attempts = 0,
        crashes = 0,
        outages = 0
    WHERE id = %(id)s
      AND status = 'pending'
      AND run_at > statement_timestamp()
    RETURNING id
"""

# Parked for the longest time, or the reconciler would soon bring the failure back.
# SKIP LOCKED: a bulk delete settles failures in its own order. To wait for one of them while
# holding another could deadlock with it.
DISMISS = """
    UPDATE pgembed_job
    SET
        status = 'dismissed',
        run_at = statement_timestamp() + %(parking)s * interval '1 second'
    WHERE id IN (
        SELECT id
        FROM pgembed_job
        WHERE id = ANY(%(ids)s)
          AND status = 'failed'
          AND settled_at IS NULL
        FOR UPDATE SKIP LOCKED
    )
"""

# In key order, like every other writer of several jobs.
FROM_KEYS = """
    INSERT INTO pgembed_job AS job (spec, source_pk, kind, priority)
    SELECT %(spec)s, source_pk, %(kind)s, %(priority)s
    FROM unnest(%(source_pks)s::text[]) AS unit(source_pk)
    ORDER BY source_pk
"""
ENQUEUE_AGAIN = FROM_KEYS + DUE_NOW

HELD = filled("""
    SELECT {columns}
    FROM pgembed_job AS job
    WHERE status = 'running'
      AND id = ANY(%(ids)s)
    ORDER BY id
    FOR UPDATE SKIP LOCKED
""")

# Counts skipped jobs that are unchanged so far, because another transaction has them locked.
STILL = """
    SELECT count(*)
    FROM pgembed_job
    WHERE id = ANY(%(ids)s)
      AND status = %(status)s
      AND settled_at IS NULL
"""


@dataclass(slots=True)
class Retried:
    """The result of a retry: counts of jobs by what became of them."""

    retried: int = 0
    superseded: int = 0
    forward: int = 0
    """Pending jobs that were in backoff and are due now."""
    gone: int = 0
    busy: int = 0


@dataclass(slots=True)
class Dismissed:
    """How many open failures were dismissed, gone meanwhile, or busy."""

    dismissed: int = 0
    gone: int = 0
    busy: int = 0


@dataclass(slots=True)
class Reaped:
    """How many jobs of a worker are pending again, failed, superseded, gone meanwhile, or busy."""

    released: int = 0
    failed: int = 0
    superseded: int = 0
    gone: int = 0
    busy: int = 0


def retry_failed(
    job_ids: Iterable[int], *, using: str, priorities: Mapping[str, int] | None = None
) -> Retried:
    """Retry failed and dismissed units from the start, and make jobs in backoff due now.

    ``priorities``: those of the specs that have one, by key.
    """
    lanes = {
        "specs": list(priorities or ()),
        "priorities": [
            priority_of(Job.Kind.MANUAL_RETRY, of_spec) for of_spec in (priorities or {}).values()
        ],
    }
    counts = Retried()
    for job_id in job_ids:
        try:
            with database.giving_way(using):
                started = database.rows(using, RETRY, id=job_id, **lanes)
                forward = not started and database.rows(using, BRING_FORWARD, id=job_id)
        except database.Busy:
            counts.busy += 1
            continue
        if started:
            [[is_new]] = started
            counts.retried += is_new
            counts.superseded += not is_new
        elif forward:
            counts.forward += 1
        else:
            counts.gone += 1
    nudge(using=using)
    return counts


def dismiss(job_ids: Iterable[int], *, using: str) -> Dismissed:
    """Dismiss open failures, and park their units for the longest time."""
    wanted = list(job_ids)
    dismissed = database.execute(using, DISMISS, ids=wanted, parking=MAX_PARKING_SECONDS)
    busy = _still(Job.Status.FAILED, wanted, using=using) if dismissed < len(wanted) else 0
    return Dismissed(dismissed, gone=len(wanted) - dismissed - busy, busy=busy)


def enqueue_again(
    spec: str, source_pks: Sequence[str], *, kind: str, priority: int, using: str
) -> None:
    """Ensure that each unit has a pending job that is due now. Call it in a transaction."""
    database.execute(
        using,
        ENQUEUE_AGAIN,
        spec=spec,
        source_pks=list(source_pks),
        kind=kind,
        priority=priority_of(kind, priority),
    )


def reap_held(job_ids: Iterable[int], *, max_crashes: int, using: str) -> Reaped:
    """Take jobs from a worker that a person believes dead, and count a crash of each.

    If the worker is still alive, it has lost these jobs, and its results are discarded.
    """
    wanted = list(job_ids)
    held = claims(HELD, using=using, ids=wanted)
    passed_over = list({*wanted} - {claim.id for claim in held})
    busy = _still(Job.Status.RUNNING, passed_over, using=using) if passed_over else 0
    counts = Reaped(gone=len(passed_over) - busy, busy=busy)
    for claim in held:
        match reap_one(claim, max_crashes=max_crashes, using=using):
            case Ending.REQUEUED:
                counts.released += 1
            case Ending.FAILED:
                counts.failed += 1
            case Ending.SUPERSEDED:
                counts.superseded += 1
            case Ending.BUSY:
                counts.busy += 1
            case Ending.LOST:
                counts.gone += 1
            case never:
                assert_never(never)
    nudge(using=using)
    return counts


def _still(status: Job.Status, job_ids: list[int], *, using: str) -> int:
    [[count]] = database.rows(using, STILL, ids=job_ids, status=status.value)
    return int(count)
