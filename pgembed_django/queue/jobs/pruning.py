"""Delete old finished jobs and dead workers' rows, and fail the jobs of specs that are gone."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import IntegrityError

from pgembed_django import database
from pgembed_django.queue.jobs.failing import SETTLE

KEEP_ATTEMPTS_SECONDS = 7 * 86400

# ARRAY, not IN, which Postgres may plan as a join that runs the LIMIT again for each row.
PRUNE = """
    DELETE FROM pgembed_job
    WHERE id = ANY(ARRAY(
        SELECT id
        FROM pgembed_job
        WHERE (status = 'succeeded' OR settled_at IS NOT NULL)
          AND finished_at < statement_timestamp() - %(keep)s * interval '1 second'
        ORDER BY finished_at
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
"""

# Dismissed failures whose parking is over: the reconciler tries their units again.
PRUNE_DISMISSED = """
    DELETE FROM pgembed_job
    WHERE id = ANY(ARRAY(
        SELECT id
        FROM pgembed_job
        WHERE status = 'dismissed'
          AND settled_at IS NULL
          AND run_at < statement_timestamp()
        ORDER BY run_at
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
"""

# During a deploy another worker may know the spec, so its jobs wait for an hour first.
UNKNOWN = """
    SELECT job.id, older.id
    FROM pgembed_job AS job
    LEFT JOIN pgembed_job AS older
      ON older.spec = job.spec
     AND older.source_pk = job.source_pk
     AND older.status IN ('failed', 'dismissed')
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
        last_error = 'No spec named ' || spec || ': its model or its @embeddable is gone.',
        signature = 'No such spec: its model or its @embeddable is gone.'
    WHERE id = ANY(%(ids)s)
      AND status = 'pending'
"""

PRUNE_ATTEMPTS = """
    DELETE FROM pgembed_attempt
    WHERE id = ANY(ARRAY(
        SELECT id
        FROM pgembed_attempt AS attempt
        WHERE ended_at < statement_timestamp() - %(keep)s * interval '1 second'
          -- A failure that nobody has looked at yet keeps its history.
          AND NOT EXISTS (
              SELECT
              FROM pgembed_job AS job
              WHERE job.spec = attempt.spec
                AND job.source_pk = attempt.source_pk
                AND job.status = 'failed'
                AND job.settled_at IS NULL
          )
        ORDER BY ended_at
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
"""

FORGET_DEAD_WORKERS = """
    DELETE FROM pgembed_worker
    WHERE last_seen_at < statement_timestamp() - %(silent)s * interval '1 second'
"""


def prune(*, keep_seconds: float, using: str, limit: int = 5000) -> int:
    """Delete a batch of old finished jobs, and of dismissed ones whose parking is over."""
    pruned = database.execute(using, PRUNE, keep=keep_seconds, limit=limit)
    return pruned + database.execute(using, PRUNE_DISMISSED, limit=limit)


def fail_unknown(known_specs: Sequence[str], *, using: str) -> int:
    """Fail old jobs of specs that neither this process nor a live worker knows."""
    try:
        with database.giving_way(using):
            found = database.rows(using, UNKNOWN, specs=list(known_specs))
            # Each unit has one open failure at most: an older one is settled.
            database.execute(using, SETTLE, ids=[older for _, older in found if older])
            return database.execute(using, FAIL_UNKNOWN, ids=[job_id for job_id, _ in found])
    except (database.Busy, IntegrityError):
        return 0  # another transaction has locked one of them: try next time


def forget_dead_workers(*, silent_seconds: float, using: str) -> int:
    """Delete the rows of workers that have not reported for this long."""
    return database.execute(using, FORGET_DEAD_WORKERS, silent=silent_seconds)


def prune_attempts(*, using: str, limit: int = 5000) -> int:
    """Delete a batch of the history older than a week, but not that of open failures."""
    return database.execute(using, PRUNE_ATTEMPTS, keep=KEEP_ATTEMPTS_SECONDS, limit=limit)
