"""Count pending, running, failed and dismissed jobs, and group open failures by kind of error.

No query reads all jobs: counts stop at a bound, and the others jump along an index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pgembed_django.core import database
from pgembed_django.core.signature import TRACEBACK
from pgembed_django.models.job import CHANGES
from pgembed_django.queue.jobs import JOBS, Table
from pgembed_django.queue.jobs.claims import EVERY_LANE

MAX_COUNT = 10_000
MIN_COUNT = 1000
BUDGET = 60_000
"""How many jobs one overview reads at most, divided among the specs."""

RECENT = 5000
"""The kinds of so many failures are listed, those of the latest."""

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

PENDING = """
    SELECT
        'pending',
        lane.spec,
        lane.priority,
        NULL::bigint,
        kind,
        is_due,
        count(*),
        sum(count(*)) OVER (PARTITION BY lane.spec, lane.priority) >= %(limit)s,
        extract(epoch FROM statement_timestamp() - min(created_at))::float8,
        NULL::float8,
        NULL::bigint
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
"""

# Of jobs and tasks alike.
ENDED_AND_RUNNING = """
  UNION ALL
    SELECT
        'running',
        spec,
        NULL,
        worker_id,
        kind,
        NULL,
        count(*),
        sum(count(*)) OVER () >= %(running)s,
        extract(epoch FROM statement_timestamp() - min(created_at))::float8,
        extract(epoch FROM statement_timestamp() - min(started_at))::float8,
        NULL
    FROM (
        SELECT spec, worker_id, kind, created_at, started_at
        FROM pgembed_job
        WHERE status = 'running'
        ORDER BY id
        LIMIT %(running)s
    ) AS running
    GROUP BY spec, worker_id, kind
  UNION ALL
    SELECT
        'failed', failing.spec, NULL, NULL, NULL, NULL,
        count, count >= %(limit)s, NULL, NULL, NULL
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
    SELECT
        'dismissed', spec, NULL, NULL, NULL, NULL,
        count(*), sum(count(*)) OVER () >= %(limit)s, NULL, NULL, NULL
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
RIPPLES = """
  UNION ALL
    SELECT
        'ripple', spec, NULL, NULL, NULL, NULL, count(*), sum(count(*)) OVER () >= %(limit)s,
        extract(epoch FROM statement_timestamp() - min(created_at))::float8, NULL, max(units)
    FROM (
        SELECT spec, created_at, units
        FROM pgembed_ripple
        ORDER BY id
        LIMIT %(limit)s
    ) AS ripples
    GROUP BY spec
    ORDER BY priority DESC
"""
COUNT_JOBS = EVERY_LANE + "," + FAILING + PENDING + ENDED_AND_RUNNING + RIPPLES
KINDS = """
    WITH recent AS (
        SELECT spec, signature, finished_at, last_error, id
        FROM pgembed_job
        WHERE status = 'failed'
          AND settled_at IS NULL
          AND (%(specs)s::text[] IS NULL OR spec = ANY(%(specs)s::text[]))
        ORDER BY finished_at DESC, id DESC
        LIMIT %(recent)s
    ),
    kind AS MATERIALIZED (
        SELECT *
        FROM (
            SELECT DISTINCT ON (spec, signature) *
            FROM recent
            ORDER BY spec, signature, finished_at DESC, id DESC
        ) AS latest
        ORDER BY finished_at DESC
        LIMIT %(limit)s + 1
    )
    SELECT
        spec,
        signature,
        counted.count,
        (
            SELECT finished_at
            FROM pgembed_job AS job
            WHERE status = 'failed'
              AND settled_at IS NULL
              AND job.spec = kind.spec
              AND job.signature = kind.signature
            -- Backwards along the same index.
            ORDER BY finished_at, id
            LIMIT 1
        ),
        finished_at,
        last_error,
        id,
        (SELECT count(*) < %(recent)s FROM recent)
    FROM kind
    CROSS JOIN LATERAL (
        SELECT count(*)
        FROM (
            SELECT
            FROM pgembed_job AS job
            WHERE status = 'failed'
              AND settled_at IS NULL
              AND job.spec = kind.spec
              AND job.signature = kind.signature
            -- Ordered as in the index: else the planner reads the whole table if failures are many.
            ORDER BY finished_at DESC, id DESC
            LIMIT %(max_count)s
        ) AS counted
    ) AS counted
    ORDER BY counted.count DESC, kind.finished_at DESC
"""


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


@dataclass(frozen=True, slots=True)
class Backlog:
    """The pending jobs of one kind. ``later`` counts those of them that are not due yet.

    ``oldest_seconds`` is the age of the oldest counted job. If the count is capped, the jobs that
    are due first were counted.
    """

    kind: str
    waiting: Count = NONE
    later: Count = NONE
    oldest_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Ripples:
    """Changes of related rows that have yet to become jobs.

    ``units``: how many jobs the one that is expanded now has become so far.
    """

    waiting: Count = NONE
    oldest_seconds: float = 0.0
    units: Count = NONE


NO_RIPPLES = Ripples()


@dataclass(frozen=True, slots=True)
class HeldJobs:
    """The jobs of one spec, or the tasks of one queue, that one worker holds."""

    spec: str
    jobs: int = 0
    oldest_seconds: float = 0.0
    """How long it has held the oldest of them."""

    @property
    def are_tasks(self) -> bool:
        """Whether they are tasks: the name of a queue has no dot."""
        return "." not in self.spec


@dataclass(frozen=True, slots=True)
class Queue:
    """Counts of the queue at one moment, by spec. Those that a worker holds: by its id and spec."""

    backlog: dict[str, dict[str, Backlog]] = field(default_factory=lambda: defaultdict(dict))
    """Spec -> kind -> its pending jobs, the most urgent kind first."""
    running: dict[str, Count] = field(default_factory=lambda: defaultdict(lambda: NONE))
    oldest_change: dict[str, float] = field(default_factory=dict)
    held: dict[int, dict[str, HeldJobs]] = field(default_factory=lambda: defaultdict(dict))
    failures: dict[str, Count] = field(default_factory=dict)
    dismissed: dict[str, Count] = field(default_factory=dict)
    ripples: dict[str, Ripples] = field(default_factory=dict)


def count_jobs(specs: Sequence[str], *, using: str, max_count: int | None = None) -> Queue:
    """Count jobs in one statement. Failures and dismissals are counted for all specs."""
    limit = max_count or max(MIN_COUNT, min(MAX_COUNT, BUDGET // (4 * len(specs) or 1)))
    rows = database.rows(using, COUNT_JOBS, specs=list(specs), limit=limit, running=MAX_COUNT)
    return counted(rows, specs)


def counted(rows: Iterable[Sequence[Any]], specs: Sequence[str]) -> Queue:
    """Return the counts that a statement has found."""
    queue = Queue()
    for status, spec, _, worker_id, kind, is_due, number, is_capped, age, held_for, units in rows:
        count = Count(number, is_capped)
        if status == "pending":
            backlog = queue.backlog[spec].get(kind, Backlog(kind))
            queue.backlog[spec][kind] = replace(
                backlog,
                waiting=backlog.waiting + count,
                later=backlog.later if is_due else backlog.later + count,
                oldest_seconds=max(backlog.oldest_seconds, age),
            )
        elif status == "running":
            queue.running[spec] += count
            held = queue.held[worker_id].get(spec, HeldJobs(spec))
            queue.held[worker_id][spec] = HeldJobs(
                spec, held.jobs + number, max(held.oldest_seconds, held_for)
            )
        elif status == "ripple":
            queue.ripples[spec] = Ripples(count, age, Count(units))
        else:
            (queue.failures if status == "failed" else queue.dismissed)[spec] = count
        if kind in CHANGES or status == "ripple":
            queue.oldest_change[spec] = max(queue.oldest_change.get(spec, 0.0), age)
    # Dismissals of all specs share one limit: once it is reached, any spec may have some.
    is_capped = any(count.is_capped for count in queue.dismissed.values())
    for spec in specs:
        queue.dismissed.setdefault(spec, Count(0, is_capped))
    return queue


@dataclass(frozen=True, slots=True)
class FailureKind:
    """The open failures of one spec with one signature. ``sample`` is the latest error."""

    spec: str
    signature: str
    count: Count
    first_at: datetime
    last_at: datetime
    sample: str
    sample_id: int
    """The id of the job with this error."""

    @property
    def message(self) -> str:
        """The latest error without its traceback."""
        return self.sample.partition(TRACEBACK)[0]


@dataclass(frozen=True, slots=True)
class FailureKinds:
    """Kinds of open failures, the largest first. ``is_whole``: there are no other kinds."""

    kinds: tuple[FailureKind, ...]
    is_whole: bool


def failure_kinds(
    *,
    using: str,
    specs: Sequence[str] | None = None,
    limit: int = 20,
    max_count: int = MAX_COUNT,
    table: Table = JOBS,
) -> FailureKinds:
    """Return the kinds of the ``RECENT`` latest open failures, the largest first, in one query.

    ``limit`` bounds the number of kinds, ``max_count`` how far each is counted.
    """
    rows = database.rows(
        using,
        table(KINDS),
        specs=None if specs is None else list(specs),
        limit=limit,
        max_count=max_count,
        recent=RECENT,
    )
    kinds = [
        FailureKind(spec, signature, Count(number, number >= max_count), *others)
        for spec, signature, number, *others, _ in rows
    ]
    is_whole = len(rows) <= limit and all(row[-1] for row in rows)
    if len(kinds) > limit:
        kinds.remove(min(kinds, key=lambda kind: kind.last_at))
    return FailureKinds(tuple(kinds), is_whole)
