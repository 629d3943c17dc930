"""Jobs that have to go alone: what a worker died with, what a provider went down with.

Of the latter one at a time among all workers, so that a provider that goes down again has one
suspect. It may have been an outage, and none of them crashes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django.db import transaction

from pgembed_django import database
from pgembed_django.jobs.claims import START, STARTED, Claim, Lease, claims

SUSPECT = """
    WHERE id = (
        SELECT id
        FROM pgembed_job AS candidate
        WHERE status = 'pending'
          AND crashes > 0
          AND spec = ANY(%(specs)s)
          AND run_at <= statement_timestamp()
          AND NOT EXISTS (
              SELECT
              FROM pgembed_job AS other
              WHERE other.status = 'running'
                AND other.spec = candidate.spec
                AND other.source_pk = candidate.source_pk
          )
        ORDER BY run_at
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    )
"""
CLAIM_ALONE = START + SUSPECT + STARTED

# In a statement of its own: the claim must see what the one before has committed.
TRY_LOCK = """
    SELECT pg_try_advisory_xact_lock(
        hashtextextended('doubtful', 'pgembed_job'::regclass::oid::bigint)
    )
"""

DOUBTFUL = """
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
"""
CLAIM_DOUBTFUL = START + DOUBTFUL + STARTED

SPECIAL_DUE = """
    SELECT
        EXISTS (
            SELECT
            FROM pgembed_job
            WHERE status = 'pending'
              AND crashes > 0
              AND spec = ANY(%(specs)s)
              AND run_at <= statement_timestamp()
        ),
        EXISTS (
            SELECT
            FROM pgembed_job
            WHERE status = 'pending'
              AND outages > 0
              AND spec = ANY(%(specs)s)
              AND run_at <= statement_timestamp()
        )
"""


class SpecialDue(NamedTuple):
    """What is due and has to go alone."""

    suspect: bool
    """Held when a worker died."""
    doubtful: bool
    """With a provider when that went down."""


def claim_alone(specs: Sequence[str], *, lease: Lease, using: str) -> list[Claim]:
    """Start one due job that was held when a worker died, if there is one."""
    return _claim(CLAIM_ALONE, specs, lease=lease, using=using)


def claim_doubtful(specs: Sequence[str], *, lease: Lease, using: str) -> list[Claim]:
    """Start one due job that a provider went down with, unless another worker has one."""
    with transaction.atomic(using=using):
        [[is_first]] = database.rows(using, TRY_LOCK)
        if not is_first:
            return []
        return _claim(CLAIM_DOUBTFUL, specs, lease=lease, using=using)


def special_due(specs: Sequence[str], *, using: str) -> SpecialDue:
    """Tell which kinds of jobs that have to go alone are waiting."""
    [found] = database.prepared(using, SPECIAL_DUE, specs=list(specs))
    return SpecialDue(*found)


def _claim(statement: str, specs: Sequence[str], *, lease: Lease, using: str) -> list[Claim]:
    return claims(
        statement, using=using, specs=list(specs), worker=lease.worker_id, lease=lease.seconds
    )
