"""Count pending, running, failed and dismissed jobs, each up to a bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pgembed_django import database
from pgembed_django.models.job import CHANGES
from pgembed_django.queue.jobs.claims import EVERY_LANE

MAX_COUNT = 10_000
MIN_COUNT = 1000
BUDGET = 60_000
"""How many jobs one overview reads at most, divided among the specs."""

# The specs that have open failures. The query jumps along their index.
FAILING = """
    failing AS (
        (
            SELECT spec
            FROM pgembed_job
            WHERE status = 'failed'
              AND settled_at IS NULL
            ORDER BY spec
            LIMIT 1
        )
      UNION ALL
        SELECT following.spec
        FROM failing
        CROSS JOIN LATERAL (
            SELECT spec
            FROM pgembed_job
            WHERE status = 'failed'
              AND settled_at IS NULL
              AND pgembed_job.spec > failing.spec
            ORDER BY spec
            LIMIT 1
        ) AS following
    )
"""

# The first column is the status, the others are those of ``Row``. Counts stop at the limit.
COUNTS = """
    SELECT
        'pending',
        lane.spec,
        lane.priority,
        NULL::bigint,
        kind,
        is_due,
        count(*),
        extract(epoch FROM statement_timestamp() - min(created_at))::float8,
        NULL::float8
    FROM lane
    CROSS JOIN LATERAL (
        SELECT kind, created_at, run_at <= statement_timestamp() AS is_due
        FROM pgembed_job
        WHERE status = 'pending'
          AND id > 0
          AND pgembed_job.spec = lane.spec
          AND pgembed_job.priority = lane.priority
          AND (run_at, id) >= (lane.from_run_at, lane.from_id)
        ORDER BY run_at
        LIMIT %(limit)s
    ) AS waiting
    GROUP BY lane.spec, lane.priority, kind, is_due
  UNION ALL
    SELECT
        'running',
        spec,
        NULL,
        worker_id,
        kind,
        NULL,
        count(*),
        extract(epoch FROM statement_timestamp() - min(created_at))::float8,
        extract(epoch FROM statement_timestamp() - min(started_at))::float8
    FROM (
        SELECT spec, worker_id, kind, created_at, started_at
        FROM pgembed_job
        WHERE status = 'running'
        ORDER BY id
        LIMIT %(running)s
    ) AS running
    GROUP BY spec, worker_id, kind
  UNION ALL
    SELECT 'failed', failing.spec, NULL, NULL, NULL, NULL, counted.count, NULL, NULL
    FROM failing
    CROSS JOIN LATERAL (
        SELECT count(*)
        FROM (
            SELECT
            FROM pgembed_job
            WHERE status = 'failed'
              AND settled_at IS NULL
              AND pgembed_job.spec = failing.spec
            -- Ordered as in the index: else the planner reads the whole table if failures are many.
            ORDER BY signature
            LIMIT %(limit)s
        ) AS failed
    ) AS counted
  UNION ALL
    SELECT 'dismissed', spec, NULL, NULL, NULL, NULL, count(*), NULL, NULL
    FROM (
        SELECT spec
        FROM pgembed_job
        WHERE status = 'dismissed'
          AND settled_at IS NULL
        ORDER BY run_at DESC
        LIMIT %(limit)s
    ) AS dismissed
    GROUP BY spec
"""
COUNT = EVERY_LANE + "," + FAILING + COUNTS


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows, counted up to a bound. ``is_capped``: there may be more."""

    value: int
    is_capped: bool = False

    def __str__(self) -> str:
        return f"{self.value:,}{'+' * self.is_capped}"

    def __bool__(self) -> bool:
        return self.value > 0

    def __add__(self, other: Count) -> Count:
        return Count(self.value + other.value, self.is_capped or other.is_capped)


NONE = Count(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The pending jobs of one kind. ``later`` counts those of them that are not due yet.

    ``oldest_seconds`` is the age of the oldest counted job. If the count is capped, the jobs that
    are due first were counted.
    """

    kind: str
    waiting: Count
    later: Count
    oldest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldJobs:
    """The jobs of one spec that one worker holds."""

    spec: str
    jobs: int
    oldest_seconds: float
    """How long it has held the oldest of them."""


class Row(NamedTuple):
    """A count of jobs that have all of this in common. Failed and dismissed: only the spec."""

    spec: str
    priority: int
    """Of pending jobs."""
    worker_id: int
    """Of running jobs."""
    kind: str
    is_due: bool
    """Of pending jobs."""
    jobs: int
    oldest_seconds: float
    held_seconds: float
    """How long its worker has held the oldest of the running jobs."""


@dataclass(slots=True)
class Queue:
    """Counts of the queue at one moment. Keyed by spec, and ``held`` by worker id."""

    backlog: dict[str, tuple[Backlog, ...]] = field(default_factory=dict)
    running: dict[str, Count] = field(default_factory=dict)
    oldest_change: dict[str, float] = field(default_factory=dict)
    held: dict[int, list[HeldJobs]] = field(default_factory=dict)
    failures: dict[str, Count] = field(default_factory=dict)
    dismissed: dict[str, Count] = field(default_factory=dict)


def count_jobs(specs: Sequence[str], *, using: str, max_count: int | None = None) -> Queue:
    """Count jobs in one statement. Failures and dismissals are counted for all specs."""
    limit = max_count or max(MIN_COUNT, min(MAX_COUNT, BUDGET // (4 * len(specs) or 1)))
    found: dict[str, list[Row]] = defaultdict(list)
    for status, *row in database.rows(
        using, COUNT, specs=list(specs), limit=limit, running=MAX_COUNT
    ):
        found[status].append(Row(*row))
    queue = Queue()
    _add_pending(queue, found["pending"], limit)
    _add_running(queue, found["running"])
    queue.failures = {row.spec: Count(row.jobs, row.jobs >= limit) for row in found["failed"]}
    dismissed = {row.spec: row.jobs for row in found["dismissed"]}
    # The limit is on all specs together: once it is reached, any spec may have more.
    is_capped = sum(dismissed.values()) >= limit
    queue.dismissed = {
        spec: Count(dismissed.get(spec, 0), is_capped) for spec in {*specs, *dismissed}
    }
    return queue


def _add_pending(queue: Queue, rows: Sequence[Row], limit: int) -> None:
    in_lane: dict[tuple[str, int], int] = defaultdict(int)
    for row in rows:
        in_lane[row.spec, row.priority] += row.jobs
    by_kind: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: -row.priority):
        by_kind[row.spec, row.kind].append(row)

    def total(rows: Iterable[Row]) -> Count:
        counts = (Count(row.jobs, in_lane[row.spec, row.priority] >= limit) for row in rows)
        return sum(counts, NONE)

    for (spec, kind), of_kind in by_kind.items():
        backlog = Backlog(
            kind=kind,
            waiting=total(of_kind),
            later=total(row for row in of_kind if not row.is_due),
            oldest_seconds=max(0.0, *(row.oldest_seconds for row in of_kind)),
        )
        queue.backlog[spec] = (*queue.backlog.get(spec, ()), backlog)
        _note_change(queue, spec, kind, backlog.oldest_seconds)


def _add_running(queue: Queue, rows: Sequence[Row]) -> None:
    is_capped = sum(row.jobs for row in rows) >= MAX_COUNT
    by_holder: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in rows:
        queue.running[row.spec] = queue.running.get(row.spec, NONE) + Count(row.jobs, is_capped)
        by_holder[row.worker_id, row.spec].append(row)
        _note_change(queue, row.spec, row.kind, row.oldest_seconds)
    for (worker_id, spec), held in sorted(by_holder.items()):
        queue.held.setdefault(worker_id, []).append(
            HeldJobs(
                spec=spec,
                jobs=sum(row.jobs for row in held),
                oldest_seconds=max(0.0, *(row.held_seconds for row in held)),
            )
        )


def _note_change(queue: Queue, spec: str, kind: str, seconds: float) -> None:
    if kind in CHANGES:
        queue.oldest_change[spec] = max(queue.oldest_change.get(spec, 0.0), seconds)
