"""Lanes: a spec's jobs of one priority. A claim walks each of them in the order of ``run_at``.

At the head of a lane lie the index entries of jobs that have ended since the last VACUUM. A claim
that begins there has to skip them. One that goes on where the last claim ended does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pgembed_django.database import arrays
from pgembed_django.models.job import Job

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
        "priorities": arrays.literal(lane.priority for lane in lanes),
        "run_ats": arrays.literal(lane.run_at for lane in lanes),
        "ids": arrays.literal(lane.id for lane in lanes),
    }
