"""Claim due jobs. Rows are locked with SKIP LOCKED: nothing here waits for anybody.

A lane is a spec's jobs of one priority, in the order of ``run_at``. At its head lie the index
entries of jobs that have ended since the last VACUUM. A claim that begins there has to skip them.
One that goes on where the last claim ended does not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import Any, NamedTuple

from psycopg import sql

from pgembed_django import database
from pgembed_django.models.job import Job
from pgembed_django.queue.jobs.leases import Claim, filled

# Writes and requests of people come first. The spec's own priority, -100 to 100, is added.
KIND_PRIORITIES = {
    Job.Kind.WRITE: 0,
    Job.Kind.MANUAL_RETRY: 0,
    Job.Kind.RECONCILER: -1000,
    Job.Kind.BACKFILL: -2000,
}

# Finds lanes, and their heads, by jumping along the index from one priority to the next.
# ``id > 0`` asks for the index of lanes: see ``READY`` in ``models.job``.
EVERY_LANE = """
    WITH RECURSIVE lane AS (
        SELECT wanted.spec, head.priority, head.run_at AS from_run_at, head.id AS from_id
        FROM unnest(%(specs)s::text[]) AS wanted(spec)
        CROSS JOIN LATERAL (
            SELECT priority, run_at, id
            FROM pgembed_job
            WHERE status = 'pending'
              AND id > 0
              AND pgembed_job.spec = wanted.spec
            ORDER BY priority DESC, run_at, id
            LIMIT 1
        ) AS head
      UNION ALL
        SELECT lane.spec, lower.priority, lower.run_at, lower.id
        FROM lane
        CROSS JOIN LATERAL (
            SELECT priority, run_at, id
            FROM pgembed_job
            WHERE status = 'pending'
              AND id > 0
              AND pgembed_job.spec = lane.spec
              AND pgembed_job.priority < lane.priority
            ORDER BY priority DESC, run_at, id
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


def priority_of(kind: str, of_spec: int) -> int:
    """Return the priority of a kind's jobs: the sum of the kind's and the spec's."""
    return KIND_PRIORITIES[Job.Kind(kind)] + of_spec


def priorities(of_spec: int) -> set[int]:
    """Return the priorities of a spec's jobs, whatever their kind."""
    return {of_kind + of_spec for of_kind in KIND_PRIORITIES.values()}


def parameters(lanes: Iterable[Lane]) -> dict[str, list[str] | str]:
    """Return the parameters of ``GIVEN_LANES``."""
    lanes = list(lanes)
    return {
        "specs": [lane.spec for lane in lanes],
        "priorities": database.array(lane.priority for lane in lanes),
        "run_ats": database.array(lane.run_at for lane in lanes),
        "ids": database.array(lane.id for lane in lanes),
    }


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
STARTED = filled("""
    RETURNING {columns}
""")

# Each lane is walked in the order of run_at, so jobs that are not due yet are never walked over.
TAKEN = """,
    due_lane AS MATERIALIZED (
        SELECT lane.spec, lane.priority, lane.from_run_at, lane.from_id
        FROM lane
        CROSS JOIN LATERAL (
            SELECT run_at
            FROM pgembed_job AS job
            WHERE status = 'pending'
              AND id > 0
              AND job.spec = lane.spec
              AND job.priority = lane.priority
              AND (job.run_at, job.id) >= (lane.from_run_at, lane.from_id)
              AND job.run_at <= statement_timestamp()
            ORDER BY run_at, id
            LIMIT 1
        ) AS head
        -- The lowest lane goes first now and then, or a swap under load never ends.
        ORDER BY lane.priority * %(direction)s, head.run_at
    ),
    taken AS MATERIALIZED (
        SELECT candidate.id
        FROM due_lane
        CROSS JOIN LATERAL (
            SELECT id
            FROM pgembed_job AS job
            WHERE status = 'pending'
              AND id > 0
              AND job.spec = due_lane.spec
              AND job.priority = due_lane.priority
              AND (job.run_at, job.id) >= (due_lane.from_run_at, due_lane.from_id)
              AND job.run_at <= statement_timestamp()
              -- A job that was held when a worker died is claimed alone.
              AND job.crashes = 0
              -- Jobs that a provider went down with are claimed one at a time.
              AND job.outages = 0
              AND (NOT %(only_new)s OR job.claims = 0)
              -- A row is never embedded by two workers at once.
              AND NOT EXISTS (
                  SELECT
                  FROM pgembed_job AS other
                  WHERE other.status = 'running'
                    AND other.spec = job.spec
                    AND other.source_pk = job.source_pk
                  -- Looked up for each: a join would read all running jobs.
                  OFFSET 0
              )
            ORDER BY run_at, id
            LIMIT {limit}
            FOR UPDATE SKIP LOCKED
        ) AS candidate
        LIMIT {limit}
    )
"""

# Not a join: its plan may read all jobs, and plans are kept.
CHOSEN = "WHERE job.id = ANY(ARRAY(SELECT id FROM taken))"
IN_ORDER = filled("""
    SELECT {columns}
    FROM started AS job
    ORDER BY priority * %(direction)s, run_at, id
""")
STARTED_IN_ORDER = ", started AS (" + START + CHOSEN + STARTED + ", run_at)" + IN_ORDER
CLAIM = EVERY_LANE + TAKEN + STARTED_IN_ORDER
CLAIM_ON = GIVEN_LANES + TAKEN + STARTED_IN_ORDER

# Seconds until the next pending job is due; zero or less if one is due already.
UNTIL_DUE = """
    SELECT extract(epoch FROM min(from_run_at) - statement_timestamp())::float8
    FROM lane
"""
NEXT_DUE = EVERY_LANE + UNTIL_DUE

# Jobs of the future: the server's clock was put back. SKIP LOCKED: whoever has one comes later.
FUTURE = """,
    unclaimed AS (
        UPDATE pgembed_job
        SET run_at = statement_timestamp(), created_at = statement_timestamp()
        WHERE id = ANY(ARRAY(
            SELECT future.id
            FROM lane
            CROSS JOIN LATERAL (
                SELECT id
                FROM pgembed_job AS job
                WHERE status = 'pending'
                  AND id > 0
                  AND job.spec = lane.spec
                  AND job.priority = lane.priority
                  AND run_at > statement_timestamp()
                  AND created_at > statement_timestamp()
                FOR UPDATE SKIP LOCKED
            ) AS future
        ))
        RETURNING id
    ),
    -- Whoever lives renews these in time.
    claimed AS (
        UPDATE pgembed_job
        SET lease_expires_at = statement_timestamp() + %(lease)s * interval '1 second'
        WHERE id = ANY(ARRAY(
            SELECT id
            FROM pgembed_job
            WHERE status = 'running'
              AND started_at > statement_timestamp()
              AND lease_expires_at > statement_timestamp() + %(lease)s * interval '1 second'
            FOR UPDATE SKIP LOCKED
        ))
    )
    SELECT count(*) FROM unclaimed
"""
RECALL = EVERY_LANE + FUTURE


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
    lowest_first: bool = False,
    only_new: bool = False,
) -> list[Claim]:
    """Start up to ``limit`` due jobs: highest priority first, then the oldest.

    ``only_new``: only jobs that were never started.
    """
    wanted = {"specs": list(specs), "direction": 1 if lowest_first else -1, "only_new": only_new}
    return _claim(CLAIM, wanted, limit=limit, lease=lease, using=using)


def claim_on(
    lanes: Sequence[Lane], *, limit: int, lease: Lease, using: str, lowest_first: bool = False
) -> list[Claim]:
    """Start up to ``limit`` due jobs like ``claim``, but from the given place in each lane on."""
    wanted = {
        **parameters(lanes),
        "direction": 1 if lowest_first else -1,
        "only_new": False,
    }
    return _claim(CLAIM_ON, wanted, limit=limit, lease=lease, using=using)


def next_due_seconds(specs: Sequence[str], *, using: str) -> float | None:
    """Return the seconds until the next job is due: zero or less if one is, None without jobs."""
    [[seconds]] = database.by_kept_plan(using, NEXT_DUE, specs=list(specs))
    return None if seconds is None else float(seconds)


def recall(specs: Sequence[str], *, lease_seconds: float, using: str) -> int:
    """Let the jobs be due that were written before the server's clock was put back.

    Also ends the leases taken before that when they should. Returns how many are due.
    """
    [[recalled]] = database.rows(using, RECALL, specs=list(specs), lease=lease_seconds)
    return int(recalled)


def _claim(
    statement: str, wanted: dict[str, Any], *, limit: int, lease: Lease, using: str
) -> list[Claim]:
    # Without a flush a crash of the server may undo a claim. Then the fence no longer matches.
    started = database.by_kept_plan(
        using,
        _with_limit(statement, limit),
        flush=False,
        worker=lease.worker_id,
        lease=lease.seconds,
        **wanted,
    )
    return [*starmap(Claim, started)]


@functools.lru_cache(maxsize=128)
def _with_limit(statement: str, limit: int) -> str:
    return sql.SQL(statement).format(limit=sql.Literal(limit)).as_string(None)
