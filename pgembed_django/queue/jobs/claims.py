"""Claim due jobs. Rows are locked with SKIP LOCKED: nothing here waits for anybody.

A lane is a spec's jobs of one priority, in the order of ``run_at``. At its head lie the index
entries of jobs that have ended since the last VACUUM. A claim that begins there has to skip them.
One that goes on where the last claim ended does not.

A suspect is a job that a worker held when it died, or that a provider had when it went down. It is
claimed alone: then a culprit is known, and harms no other job.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import starmap
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models.functions import Now

from pgembed_django.core import database, locks
from pgembed_django.models.job import READY, RUNNING
from pgembed_django.queue.jobs.leases import COLUMNS, JOBS, Claim, Table, unlocked

# Finds lanes, and their heads, by jumping along the index from one priority to the next, from one
# above all. ``id > 0`` asks for the index of lanes: see ``READY`` in ``models.job``.
EVERY_LANE = """
    WITH RECURSIVE lane AS (
        SELECT spec, 32768 AS priority, 'infinity'::timestamptz AS from_run_at, 0::bigint AS from_id
        FROM unnest(%(specs)s::text[]) AS wanted(spec)
      UNION ALL
        SELECT lane.spec, lower.priority, lower.run_at, lower.id
        FROM lane
        CROSS JOIN LATERAL (
            SELECT priority::int, run_at, id
            FROM pgembed_job
            WHERE status = 'pending'
              AND id > 0
              AND pgembed_job.spec = lane.spec
              AND pgembed_job.priority < lane.priority
            ORDER BY pgembed_job.priority DESC, run_at, id
            LIMIT 1
        ) AS lower
    )
"""

# The given lanes, each from behind the job that was claimed last.
GIVEN_LANES = """
    WITH lane AS (
        SELECT spec, priority, run_at AS from_run_at, id + 1 AS from_id
        FROM unnest(
            %(specs)s::text[],
            %(priorities)s::smallint[],
            %(run_ats)s::timestamptz[],
            %(ids)s::bigint[]
        ) AS claimed(spec, priority, run_at, id)
    )
"""


class Lane(NamedTuple):
    """A lane, and the last job that was claimed in it. By default none: it begins at its head."""

    spec: str
    priority: int
    run_at: str = "-infinity"
    """As Postgres writes it, because it is only sent back."""
    id: int = 0


# How every claim begins. Each adds which jobs it takes.
START = """
    UPDATE pgembed_job AS job
    SET
        status = 'running',
        claims = claims + 1,
        worker_id = %(worker)s,
        started_at = statement_timestamp(),
        lease_expires_at = statement_timestamp() + %(lease)s * interval '1 second'
"""
STARTED = "    RETURNING " + COLUMNS

# Each lane is walked in the order of run_at, so jobs that are not due yet are never walked over.
TAKEN = """,
    taken AS MATERIALIZED (
        SELECT candidate.id
        FROM (
            SELECT *
            FROM lane
            -- The lowest lane goes first now and then, or a swap under load never ends.
            ORDER BY priority * %(direction)s, from_run_at
            OFFSET 0
        ) AS lane
        CROSS JOIN LATERAL (
            SELECT id
            FROM pgembed_job AS job
            WHERE status = 'pending'
              AND id > 0
              AND job.spec = lane.spec
              AND job.priority = lane.priority
              AND (job.run_at, job.id) >= (lane.from_run_at, lane.from_id)
              AND job.run_at <= statement_timestamp()
              -- Suspects are claimed alone.
              AND job.crashes = 0
              AND job.outages = 0
              AND (NOT %(only_new)s OR job.claims = 0)
              -- A row is never embedded by two workers at once.
              AND NOT EXISTS (
                  SELECT
                  FROM pgembed_job AS other
                  WHERE other.status = 'running'
                    AND {beside}
                  -- Looked up for each: a join would read all running jobs.
                  OFFSET 0
              )
            ORDER BY run_at, id
            LIMIT %(limit)s
            FOR UPDATE SKIP LOCKED
        ) AS candidate
        LIMIT %(limit)s
    )
"""

# Not a join: its plan may read all jobs, and plans are kept.
CHOSEN = "WHERE job.id = ANY(ARRAY(SELECT id FROM taken))"
IN_ORDER = """
    FROM started AS job
    ORDER BY priority * %(direction)s, run_at, id
"""
STARTED_IN_ORDER = (
    ", started AS (" + START + CHOSEN + STARTED + ", run_at) SELECT " + COLUMNS + IN_ORDER
)
CLAIM = EVERY_LANE + TAKEN + STARTED_IN_ORDER
CLAIM_ON = GIVEN_LANES + TAKEN + STARTED_IN_ORDER

# Seconds until the next pending job is due; zero or less if one is due already.
UNTIL_DUE = """
    SELECT extract(epoch FROM min(from_run_at) - statement_timestamp())::float8
    FROM lane
    WHERE from_id > 0
"""
NEXT_DUE = EVERY_LANE + UNTIL_DUE

SUSPECT = """
    SELECT candidate.id
    FROM unnest(%(specs)s::text[]) AS wanted(spec)
    CROSS JOIN LATERAL (
        SELECT id, run_at
        FROM pgembed_job AS job
        WHERE status = 'pending'
          AND (crashes > 0 OR outages > 0)
          AND job.spec = wanted.spec
          AND run_at <= statement_timestamp()
          AND NOT EXISTS (
              SELECT
              FROM pgembed_job AS other
              WHERE other.status = 'running'
                AND {beside}
              OFFSET 0
          )
          -- A provider goes down for all workers: only one of them asks for such a text at a time.
          AND (
              outages = 0
              OR NOT EXISTS (
                  SELECT
                  FROM (
                      SELECT
                      FROM pgembed_job AS other
                      WHERE other.status = 'running'
                        AND other.outages > 0
                      -- An open delete may have locked one for hours. Workers' locks are weaker.
                      FOR KEY SHARE SKIP LOCKED
                  ) AS at_a_provider
              )
          )
        ORDER BY run_at
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS candidate
    ORDER BY candidate.run_at
    LIMIT 1
"""
CLAIM_SUSPECT = START + "WHERE id = (" + SUSPECT + ")" + STARTED

UNIT = """
    SELECT id
    FROM pgembed_job AS candidate
    WHERE status = 'pending'
      AND spec = %(spec)s
      AND source_pk = %(source_pk)s
      AND run_at <= statement_timestamp()
      -- Suspects are claimed alone, by workers.
      AND crashes = 0
      AND outages = 0
      AND NOT EXISTS (
          SELECT
          FROM pgembed_job AS other
          WHERE other.status = 'running'
            AND other.spec = candidate.spec
            AND other.source_pk = candidate.source_pk
          OFFSET 0
      )
    FOR UPDATE SKIP LOCKED
"""
CLAIM_UNIT = START + "WHERE id = (" + UNIT + ")" + STARTED


class Lease(NamedTuple):
    """Which worker claims, and how many seconds its claims last without a heartbeat."""

    worker_id: int
    seconds: float


def claim(
    specs: Sequence[str],
    *,
    limit: int,
    lease: Lease,
    using: str,
    lanes: Sequence[Lane] | None = None,
    lowest_first: bool = False,
    only_new: bool = False,
) -> list[Claim]:
    """Start up to ``limit`` due jobs: highest priority first, then the oldest.

    ``lanes``: only in these, from the given place in each on. ``only_new``: only jobs that were
    never started.
    """
    from_where: dict[str, Any] = {"specs": list(specs)}
    if lanes is not None:
        from_where = {
            "specs": [lane.spec for lane in lanes],
            "priorities": database.array([lane.priority for lane in lanes]),
            "run_ats": database.array([lane.run_at for lane in lanes]),
            "ids": database.array([lane.id for lane in lanes]),
        }
    started = database.by_kept_plan(
        using,
        JOBS(CLAIM if lanes is None else CLAIM_ON),
        # A crash of the server may undo the claim. Then the fence no longer matches.
        flush=False,
        worker=lease.worker_id,
        lease=lease.seconds,
        limit=limit,
        direction=1 if lowest_first else -1,
        only_new=only_new,
        **from_where,
    )
    return [*starmap(Claim, started)]


def claim_suspect(
    specs: Sequence[str], *, lease: Lease, using: str, table: Table = JOBS
) -> list[Claim]:
    """Start one due suspect, if there is one. The worker must hold no other job meanwhile."""
    # A statement of its own takes the lock: the claim must see what its last holder committed.
    with locks.transaction_lock(f"{table.name}_suspect", using=using) as is_first:
        if not is_first:
            return []
        given = {"specs": list(specs), "worker": lease.worker_id, "lease": lease.seconds}
        return [*starmap(Claim, database.prepared(using, table(CLAIM_SUSPECT), **given))]


def claim_unit(spec: str, source_pk: str, *, lease: Lease, using: str) -> list[Claim]:
    """Start the job of one unit, if it is due, no suspect, and locked by nobody."""
    # The session is a project's own, and may be stricter than READ COMMITTED.
    with suppress(database.Busy), database.giving_way(using, wait=database.BRIEFLY):
        given = {"spec": spec, "source_pk": source_pk, "worker": lease.worker_id}
        started = database.rows(using, CLAIM_UNIT, **given, lease=lease.seconds)
        return [*starmap(Claim, started)]
    return []


def is_suspect_due(specs: Sequence[str], *, using: str, table: Table = JOBS) -> bool:
    """Return whether there is a suspect that ``claim_suspect`` would start."""
    return bool(database.by_kept_plan(using, table(SUSPECT), flush=False, specs=list(specs)))


def next_due_seconds(specs: Sequence[str], *, using: str) -> float | None:
    """Return the seconds until the next job is due: zero or less if one is, None without jobs."""
    [[seconds]] = database.by_kept_plan(using, NEXT_DUE, specs=list(specs))
    return None if seconds is None else float(seconds)


def recall(specs: Sequence[str], *, lease_seconds: float, using: str, table: Table = JOBS) -> int:
    """Let the jobs be due that were written before the server's clock was put back.

    Also ends the leases taken before that when they should. Returns how many are due. Jobs that are
    locked are left alone.
    """
    lease_end = Now() + timedelta(seconds=lease_seconds)
    with transaction.atomic(using=using):
        known = table.of(specs, using=using)
        written = known.filter(READY, run_at__gt=Now(), created_at__gt=Now())
        # A worker that lives renews these in time.
        taken = known.filter(RUNNING, started_at__gt=Now(), lease_expires_at__gt=lease_end)
        unlocked(taken).update(lease_expires_at=lease_end)
        return unlocked(written).update(run_at=Now(), created_at=Now())
