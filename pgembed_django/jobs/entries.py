"""How jobs enter and leave other than by a trigger or a worker's hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pgembed_django import database
from pgembed_django.jobs.endings import SETTLE
from pgembed_django.models import Job

# Writes and people first. A spec's own priority, -100 to 100, is added.
LANES = {
    Job.Kind.WRITE: 0,
    Job.Kind.MANUAL_RETRY: 0,
    Job.Kind.RECONCILER: -1000,
    Job.Kind.BACKFILL: -2000,
}

# In key order, like every other writer of several jobs.
ENQUEUE = """
    INSERT INTO pgembed_job (spec, source_pk, kind, priority)
    SELECT %(spec)s, source_pk, %(kind)s, %(priority)s
    FROM unnest(%(source_pks)s::text[]) AS unit(source_pk)
    ORDER BY source_pk
    ON CONFLICT (spec, source_pk) WHERE status = 'pending'
    DO NOTHING
"""

# A person's retry: the failure becomes a pending job, or brings the pending one forward.
RETRY_FAILED = """
    WITH failure AS (
        UPDATE pgembed_job
        SET settled_at = statement_timestamp()
        WHERE id = %(id)s
          AND status = 'failed'
          AND settled_at IS NULL
        RETURNING spec, source_pk
    )
    INSERT INTO pgembed_job AS job (spec, source_pk, kind)
    SELECT spec, source_pk, 'manual_retry'
    FROM failure
    ON CONFLICT (spec, source_pk) WHERE status = 'pending'
    DO UPDATE SET
        run_at = LEAST(job.run_at, excluded.run_at),
        priority = GREATEST(job.priority, excluded.priority),
        attempts = 0,
        crashes = 0
    RETURNING (xmax = 0) AS is_new
"""

PRUNE = """
    DELETE FROM pgembed_job
    WHERE id IN (
        SELECT id
        FROM pgembed_job
        WHERE (status = 'succeeded' OR (status = 'failed' AND settled_at IS NOT NULL))
          AND finished_at < statement_timestamp() - %(keep)s * interval '1 second'
        ORDER BY finished_at
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    )
"""

# During a deploy another worker may know the spec: its jobs wait an hour first.
FAIL_UNKNOWN = """
    UPDATE pgembed_job
    SET
        status = 'failed',
        finished_at = statement_timestamp(),
        last_error = 'No spec named ' || spec || ': its model or its @embeddable is gone.'
    WHERE id IN (
        SELECT id
        FROM pgembed_job
        WHERE status = 'pending'
          AND spec <> ALL(%(specs)s)
          AND created_at < statement_timestamp() - interval '1 hour'
          AND NOT EXISTS (
              SELECT
              FROM pgembed_worker AS worker
              WHERE worker.specs ? pgembed_job.spec
          )
        LIMIT 1000
        FOR UPDATE SKIP LOCKED
    )
"""

FORGET_DEAD_WORKERS = """
    DELETE FROM pgembed_worker
    WHERE last_seen_at < statement_timestamp() - %(silent)s * interval '1 second'
"""


class Retried(NamedTuple):
    """What a person's retry did: new jobs, merged into newer work, gone meanwhile, busy."""

    retried: int
    superseded: int
    gone: int
    busy: int


def enqueue(spec: str, source_pks: Sequence[str], *, kind: str, priority: int, using: str) -> int:
    """Add jobs for units that have no pending one. Returns how many were added.

    A unit that a writer is working on at this moment is left to that writer's job.
    """
    if not source_pks:
        return 0
    try:
        with database.giving_way(using):
            return database.execute(
                using,
                ENQUEUE,
                spec=spec,
                kind=kind,
                priority=LANES[Job.Kind(kind)] + priority,
                source_pks=list(source_pks),
            )
    except database.Busy:
        if len(source_pks) == 1:
            return 0
    middle = len(source_pks) // 2
    return sum(
        enqueue(spec, half, kind=kind, priority=priority, using=using)
        for half in (source_pks[:middle], source_pks[middle:])
    )


def retry_failed(job_ids: Iterable[int], *, using: str) -> Retried:
    """Start failed units afresh, as a person asked."""
    counts = {"retried": 0, "superseded": 0, "gone": 0, "busy": 0}
    for job_id in job_ids:
        try:
            with database.giving_way(using):
                result = database.rows(using, RETRY_FAILED, id=job_id)
        except database.Busy:
            counts["busy"] += 1
            continue
        if not result:
            counts["gone"] += 1
        else:
            counts["retried" if result[0][0] else "superseded"] += 1
    return Retried(**counts)


def dismiss(job_ids: Iterable[int], *, using: str) -> int:
    """Settle open failures without retrying them. Returns how many there were."""
    return database.execute(using, SETTLE, ids=list(job_ids))


def prune(*, keep_seconds: float, using: str, limit: int = 5000) -> int:
    """Delete finished jobs that are old enough, a small batch of them. Not open failures."""
    return database.execute(using, PRUNE, keep=keep_seconds, limit=limit)


def fail_unknown(known_specs: Sequence[str], *, using: str) -> int:
    """Fail old jobs of specs that neither this process nor a live worker knows."""
    return database.execute(using, FAIL_UNKNOWN, specs=list(known_specs))


def forget_dead_workers(*, silent_seconds: float, using: str) -> int:
    """Delete the rows of workers that have not been heard of for so long."""
    return database.execute(using, FORGET_DEAD_WORKERS, silent=silent_seconds)
