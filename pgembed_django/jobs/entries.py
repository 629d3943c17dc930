"""How jobs enter and leave other than by a trigger or a worker's hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django.db import IntegrityError

from pgembed_django import database
from pgembed_django.jobs.endings import SETTLE
from pgembed_django.models import Job

BRIEFLY = "10ms"
MAX_BUSY = 20
"""So often, and so long each time, ``enqueue`` waits for open writers. What it has added by
then, other writers wait for."""

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
        crashes = 0,
        outages = 0
    RETURNING (xmax = 0) AS is_new
"""

# Without those that are being settled otherwise: a bulk deleter takes them in its own order.
DISMISS = """
    UPDATE pgembed_job
    SET settled_at = statement_timestamp()
    WHERE id IN (
        SELECT id
        FROM pgembed_job
        WHERE id = ANY(%(ids)s)
          AND status = 'failed'
          AND settled_at IS NULL
        FOR UPDATE SKIP LOCKED
    )
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
UNKNOWN = """
    SELECT job.id, older.id
    FROM pgembed_job AS job
    LEFT JOIN pgembed_job AS older
      ON older.spec = job.spec
     AND older.source_pk = job.source_pk
     AND older.status = 'failed'
     AND older.settled_at IS NULL
    WHERE job.status = 'pending'
      AND job.spec <> ALL(%(specs)s)
      AND job.created_at < statement_timestamp() - interval '1 hour'
      AND NOT EXISTS (
          SELECT
          FROM pgembed_worker AS worker
          WHERE worker.specs ? job.spec
      )
    LIMIT 1000
    FOR UPDATE OF job SKIP LOCKED
"""

FAIL_UNKNOWN = """
    UPDATE pgembed_job
    SET
        status = 'failed',
        finished_at = statement_timestamp(),
        last_error = 'No spec named ' || spec || ': its model or its @embeddable is gone.'
    WHERE id = ANY(%(ids)s)
      AND status = 'pending'
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

    A unit that a writer is working on at this moment is left to that writer's job. Where
    that is so for many, some of the others are left to the next call, too.
    """
    added = busy = 0
    pieces = [list(source_pks)] if source_pks else []
    while pieces and busy < MAX_BUSY:
        piece = pieces.pop()
        try:
            with database.giving_way(using, wait=BRIEFLY):
                added += database.execute(
                    using,
                    ENQUEUE,
                    spec=spec,
                    kind=kind,
                    priority=LANES[Job.Kind(kind)] + priority,
                    source_pks=piece,
                )
        except database.Busy:
            busy += 1
            middle = len(piece) // 2
            if middle:
                pieces += [piece[middle:], piece[:middle]]
    return added


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
    return database.execute(using, DISMISS, ids=list(job_ids))


def prune(*, keep_seconds: float, using: str, limit: int = 5000) -> int:
    """Delete finished jobs that are old enough, a small batch of them. Not open failures."""
    return database.execute(using, PRUNE, keep=keep_seconds, limit=limit)


def fail_unknown(known_specs: Sequence[str], *, using: str) -> int:
    """Fail old jobs of specs that neither this process nor a live worker knows."""
    try:
        with database.giving_way(using):
            found = database.rows(using, UNKNOWN, specs=list(known_specs))
            # Each unit is listed once: an older failure gives way to this one.
            database.execute(using, SETTLE, ids=[older for _, older in found if older])
            return database.execute(using, FAIL_UNKNOWN, ids=[job_id for job_id, _ in found])
    except (database.Busy, IntegrityError):
        return 0  # somebody else is at one of them: next time


def forget_dead_workers(*, silent_seconds: float, using: str) -> int:
    """Delete the rows of workers that have not been heard of for so long."""
    return database.execute(using, FORGET_DEAD_WORKERS, silent=silent_seconds)
