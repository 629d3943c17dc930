"""Claim jobs that a provider went down with, one at a time among all workers.

Perhaps one of them crashes it, perhaps it was an outage and none does. So that no other
one is found beside the culprit twice, each has to be with the provider alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction

from pgembed_django import database
from pgembed_django.jobs.claims import Claim, claims

# In a statement of its own: the claim must see what the one before has committed.
TRY_LOCK = """
    SELECT pg_try_advisory_xact_lock(
        hashtextextended('doubtful', 'pgembed_job'::regclass::oid::bigint)
    )
"""

CLAIM_DOUBTFUL = """
    UPDATE pgembed_job AS job
    SET
        status = 'running',
        claims = claims + 1,
        worker_id = %(worker)s,
        started_at = statement_timestamp(),
        lease_expires_at = statement_timestamp() + %(lease)s * interval '1 second'
    WHERE id = (
        SELECT id
        FROM pgembed_job AS candidate
        WHERE status = 'pending'
          AND outages > 0
          AND crashes = 0
          AND spec = ANY(%(specs)s)
          AND run_at <= statement_timestamp()
          AND NOT EXISTS (
              SELECT
              FROM pgembed_job AS other
              WHERE other.status = 'running'
                AND (
                    other.outages > 0
                    OR (other.spec = candidate.spec AND other.source_pk = candidate.source_pk)
                )
          )
        ORDER BY run_at
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    )
    RETURNING job.id, claims, spec, source_pk, kind, attempts, crashes, outages, traceparent
"""


def claim_doubtful(
    specs: Sequence[str], *, worker_id: int, lease_seconds: float, using: str
) -> list[Claim]:
    """Start one due job that a provider went down with, unless another worker has one."""
    with transaction.atomic(using=using):
        [[is_first]] = database.rows(using, TRY_LOCK)
        if not is_first:
            return []
        return claims(
            CLAIM_DOUBTFUL, using, specs=list(specs), worker=worker_id, lease=lease_seconds
        )
