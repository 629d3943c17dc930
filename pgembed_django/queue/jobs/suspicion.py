"""Claim suspicious jobs alone: suspects, with which a worker died, and doubtful ones.

With a doubtful job, a provider went down. All workers together run one of these at a time, so
that if the provider goes down again, the culprit is known. It may also have been an outage that
none of them caused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django.db import transaction

from pgembed_django import database
from pgembed_django.queue.jobs.claims import START, STARTED, Lease
from pgembed_django.queue.jobs.leases import Claim, claims

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
              OFFSET 0
          )
        ORDER BY run_at
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    )
"""
CLAIM_SUSPECT = START + SUSPECT + STARTED

# In its own statement: the claim after it must see what the last holder committed.
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
                AND other.spec = candidate.spec
                AND other.source_pk = candidate.source_pk
          )
          AND NOT EXISTS (
              SELECT
              FROM (
                  SELECT
                  FROM pgembed_job AS other
                  WHERE other.status = 'running'
                    AND other.outages > 0
                  -- An open delete may have locked one for hours. Workers' own locks are weaker.
                  FOR KEY SHARE SKIP LOCKED
              ) AS at_a_provider
          )
        ORDER BY run_at
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    )
"""
CLAIM_DOUBTFUL = START + DOUBTFUL + STARTED

# ORDER BY is for the plan, which is kept: only the partial index has this order.
DUE = """
    EXISTS (
        SELECT
        FROM unnest(%(specs)s::text[]) AS wanted(spec)
        CROSS JOIN LATERAL (
            SELECT
            FROM pgembed_job
            WHERE status = 'pending'
              AND {count} > 0
              AND pgembed_job.spec = wanted.spec
              AND run_at <= statement_timestamp()
            ORDER BY run_at
            LIMIT 1
        ) AS due
    )
"""
SUSPICIOUS_DUE = f"SELECT {DUE.format(count='crashes')}, {DUE.format(count='outages')}"


class Suspicious(NamedTuple):
    """Whether suspicious jobs of each kind are due."""

    suspect: bool
    """A worker died while it held them."""
    doubtful: bool
    """A provider went down with them."""


def claim_suspect(specs: Sequence[str], *, lease: Lease, using: str) -> list[Claim]:
    """Start one due job with which a worker died, if there is one."""
    return _claim(CLAIM_SUSPECT, specs, lease=lease, using=using)


def claim_doubtful(specs: Sequence[str], *, lease: Lease, using: str) -> list[Claim]:
    """Start one due job with which a provider went down, unless another such job is running."""
    with transaction.atomic(using=using):
        [[is_first]] = database.rows(using, TRY_LOCK)
        if not is_first:
            return []
        return _claim(CLAIM_DOUBTFUL, specs, lease=lease, using=using)


def suspicious_due(specs: Sequence[str], *, using: str) -> Suspicious:
    """Return which kinds of suspicious jobs are due."""
    [found] = database.by_kept_plan(using, SUSPICIOUS_DUE, specs=list(specs))
    return Suspicious(*found)


def _claim(statement: str, specs: Sequence[str], *, lease: Lease, using: str) -> list[Claim]:
    return claims(
        statement, using=using, specs=list(specs), worker=lease.worker_id, lease=lease.seconds
    )
