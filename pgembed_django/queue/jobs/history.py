"""The history of claims that did not succeed, written as each one ends."""

from __future__ import annotations

from pgembed_django import database
from pgembed_django.models.attempt import Attempt
from pgembed_django.queue.jobs.fencing import Claim, filled

KEEP_SECONDS = 7 * 86400

# Before the job changes, while it still has its worker. Locks the job.
NOTE = filled("""
    INSERT INTO pgembed_attempt (spec, source_pk, outcome, started_at, worker, error)
    SELECT
        job.spec,
        job.source_pk,
        %(outcome)s,
        COALESCE(job.started_at, job.created_at),
        COALESCE(worker.host || ':' || worker.pid, '#' || job.worker_id),
        %(error)s
    FROM pgembed_job AS job
    LEFT JOIN pgembed_worker AS worker
      ON worker.id = job.worker_id
    WHERE {ours}
    FOR UPDATE OF job
""")

PRUNE = """
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


def note(claim: Claim, outcome: Attempt.Outcome, error: str, *, using: str) -> None:
    """Record how a claim ends, if it is still ours. Call it in the transaction that ends it."""
    database.execute(using, NOTE, **claim.fence, outcome=outcome, error=error)


def prune_attempts(*, using: str, limit: int = 5000) -> int:
    """Delete a batch of the history older than a week, but not that of open failures."""
    return database.execute(using, PRUNE, keep=KEEP_SECONDS, limit=limit)
