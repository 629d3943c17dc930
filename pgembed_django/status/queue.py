"""Count pending, running, failed and dismissed jobs, each up to a bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pgembed_django import database
from pgembed_django.jobs.lanes import EVERY_LANE
from pgembed_django.status.failures import FAILING
from pgembed_django.status.shapes import CHANGES, NONE, Backlog, Count, HeldJobs

MAX_COUNT = 10_000
MIN_COUNT = 1000
BUDGET = 60_000
"""How many jobs one overview reads at most, divided among the specs."""

# The first column is P(ending), R(unning), F(ailed) or D(ismissed). Counts stop at the limit.
COUNTS = """
    SELECT
        'P' AS what,
        lane.spec,
        lane.priority::bigint AS number,
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
        'R',
        spec,
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
    SELECT 'F', failing.spec, NULL, NULL, NULL, counted.count, NULL, NULL
    FROM failing
    CROSS JOIN LATERAL (
        SELECT count(*)
        FROM (
            SELECT
            FROM pgembed_job
            WHERE status = 'failed'
              AND settled_at IS NULL
              AND pgembed_job.spec = failing.spec
            -- Along the index: with so many failures the planner would read the whole table.
            ORDER BY signature
            LIMIT %(limit)s
        ) AS failed
    ) AS counted
  UNION ALL
    SELECT 'D', spec, NULL, NULL, NULL, count(*), NULL, NULL
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


@dataclass(slots=True)
class Queue:
    """Counts of the queue at one moment. Keyed by spec, and ``held`` by worker id."""

    backlog: dict[str, tuple[Backlog, ...]] = field(default_factory=dict)
    running: dict[str, Count] = field(default_factory=dict)
    oldest_change: dict[str, float] = field(default_factory=dict)
    held: dict[int, list[HeldJobs]] = field(default_factory=dict)
    failures: dict[str, Count] = field(default_factory=dict)
    dismissed: dict[str, Count] = field(default_factory=dict)


def count(specs: Sequence[str], *, using: str, max_count: int | None = None) -> Queue:
    """Count jobs in one statement. Failures and dismissals are counted for all specs."""
    limit = max_count or max(MIN_COUNT, min(MAX_COUNT, BUDGET // (4 * len(specs) or 1)))
    found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for what, *row in database.rows(
        using, COUNT, specs=list(specs), limit=limit, running=MAX_COUNT
    ):
        found[what].append(tuple(row))
    queue = Queue()
    _add_pending(queue, found["P"], limit)
    _add_running(queue, found["R"])
    queue.failures = {spec: Count(number, number >= limit) for spec, *_, number, _, _ in found["F"]}
    dismissed = {spec: number for spec, *_, number, _, _ in found["D"]}
    # The limit is on all specs together: once it is reached, any spec may have more.
    is_capped = sum(dismissed.values()) >= limit
    queue.dismissed = {
        spec: Count(dismissed.get(spec, 0), is_capped) for spec in {*specs, *dismissed}
    }
    return queue


def _add_pending(queue: Queue, rows: list[tuple[Any, ...]], limit: int) -> None:
    lanes: dict[tuple[str, int], int] = defaultdict(int)
    for spec, priority, _, _, number, _, _ in rows:
        lanes[spec, priority] += number
    kinds: dict[tuple[str, str], list[Any]] = {}
    for spec, priority, kind, is_due, number, oldest, _ in sorted(rows, key=lambda row: -row[1]):
        entry = kinds.setdefault((spec, kind), [NONE, NONE, 0.0])
        is_capped = lanes[spec, priority] >= limit
        entry[0] += Count(number, is_capped)
        if not is_due:
            entry[1] += Count(number, is_capped)
        entry[2] = max(entry[2], oldest)
        if kind in CHANGES:
            _note_change(queue, spec, oldest)
    for (spec, kind), (waiting, later, oldest) in kinds.items():
        queue.backlog[spec] = (
            *queue.backlog.get(spec, ()),
            Backlog(kind=kind, waiting=waiting, later=later, oldest_seconds=oldest),
        )


def _add_running(queue: Queue, rows: list[tuple[Any, ...]]) -> None:
    is_capped = sum(row[4] for row in rows) >= MAX_COUNT
    held: dict[tuple[int, str], tuple[int, float]] = {}
    for spec, worker_id, kind, _, number, oldest, held_seconds in rows:
        queue.running[spec] = queue.running.get(spec, NONE) + Count(number, is_capped)
        jobs, longest = held.get((worker_id, spec), (0, 0.0))
        held[worker_id, spec] = (jobs + number, max(longest, held_seconds))
        if kind in CHANGES:
            _note_change(queue, spec, oldest)
    for (worker_id, spec), (jobs, longest) in sorted(held.items()):
        queue.held.setdefault(worker_id, []).append(
            HeldJobs(spec=spec, jobs=jobs, oldest_seconds=longest)
        )


def _note_change(queue: Queue, spec: str, seconds: float) -> None:
    queue.oldest_change[spec] = max(queue.oldest_change.get(spec, 0.0), seconds)
