"""Lanes: a spec's jobs of one priority. A claim walks each of them in the order of ``run_at``.

At the head of a lane lie the index entries of jobs that have ended since the last VACUUM. A claim
that begins there has to skip them. One that goes on where the last claim ended does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pgembed_django.models import Job

# Writes and requests of people come first. The spec's own priority, -100 to 100, is added.
LANES = {
    Job.Kind.WRITE: 0,
    Job.Kind.MANUAL_RETRY: 0,
    Job.Kind.RECONCILER: -1000,
    Job.Kind.BACKFILL: -2000,
}

# Finds lanes by jumping along the index from one priority to the next. Each begins at its head.
# ``id > 0`` asks for the index of lanes: see ``READY`` in ``models.job``.
EVERY_LANE = """
    WITH RECURSIVE found AS (
        SELECT spec, priority
        FROM unnest(%(specs)s::text[]) AS wanted(spec)
        CROSS JOIN LATERAL (
            SELECT priority
            FROM pgembed_job
            WHERE status = 'pending'
              AND id > 0
              AND pgembed_job.spec = wanted.spec
            ORDER BY priority DESC
            LIMIT 1
        ) AS highest
      UNION ALL
        SELECT found.spec, lower.priority
        FROM found
        CROSS JOIN LATERAL (
            SELECT priority
            FROM pgembed_job
            WHERE status = 'pending'
              AND id > 0
              AND pgembed_job.spec = found.spec
              AND pgembed_job.priority < found.priority
            ORDER BY priority DESC
            LIMIT 1
        ) AS lower
    ),
    lane AS (
        SELECT spec, priority, '-infinity'::timestamptz AS after_run_at, 0 AS after_id
        FROM found
    )
"""

# The given lanes, each from the place where the claim has to go on.
GIVEN_LANES = """
    WITH lane AS (
        SELECT spec, priority, after_run_at, after_id
        FROM unnest(
            %(specs)s::text[],
            %(priorities)s::smallint[],
            %(run_ats)s::timestamptz[],
            %(ids)s::bigint[]
        ) AS given(spec, priority, after_run_at, after_id)
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
    return LANES[Job.Kind(kind)] + of_spec


def parameters(lanes: Iterable[Lane]) -> dict[str, list[str] | list[int] | str]:
    """Return the parameters of ``GIVEN_LANES``."""
    lanes = list(lanes)
    return {
        "specs": [lane.spec for lane in lanes],
        "priorities": [lane.priority for lane in lanes],
        # As one array literal, so that the driver need not adapt each element.
        "run_ats": "{" + ",".join(f'"{lane.run_at}"' for lane in lanes) + "}",
        "ids": [lane.id for lane in lanes],
    }
