"""The status of the queues of tasks: what waits and since when, what fails, and what to do.

As for jobs, no query reads all tasks: counts stop at a bound, the others jump along an index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from pgembed_django.core import database
from pgembed_django.ops.formatting import duration
from pgembed_django.ops.queue import (
    ENDED_AND_RUNNING,
    FAILING,
    MAX_COUNT,
    NONE,
    Backlog,
    Count,
    Queue,
    counted,
)
from pgembed_django.ops.verdicts import LATE_SECONDS, STUCK_SECONDS, WORKER
from pgembed_django.queue.rollups import Point
from pgembed_django.tasks import turns
from pgembed_django.tasks.table import TASKS

if TYPE_CHECKING:
    from pgembed_django.ops.status import WorkerStatus

QueueState = Literal["moving", "degraded", "stalled"]
QUEUE_STATES: tuple[QueueState, ...] = get_args(QueueState)
"""From best to worst."""

MAX_TENANTS = 500
"""Of each queue and priority, the task that waits longest is looked for among so many tenants."""

# The index has the tasks of a queue and priority by tenant: this jumps from the first task of one
# tenant to that of the next, then to the next priority, then to the next queue.
FIRSTS = """
    WITH RECURSIVE first AS (
        (
            SELECT spec, priority::int, tenant, run_at, 1 AS number
            FROM pgembed_task AS task
            WHERE {ready}
            ORDER BY spec, task.priority DESC, tenant, run_at, id
            LIMIT 1
        )
      UNION ALL
        SELECT following.*
        FROM first
        CROSS JOIN LATERAL (
            SELECT *
            FROM (
                (
                    SELECT spec, priority::int, tenant, run_at, first.number + 1
                    FROM pgembed_task AS task
                    WHERE {ready}
                      AND task.spec = first.spec
                      AND task.priority = first.priority
                      AND task.tenant > first.tenant
                      AND first.number < %(tenants)s
                    ORDER BY tenant, run_at, id
                    LIMIT 1
                )
              UNION ALL
                (
                    SELECT spec, priority::int, tenant, run_at, 1
                    FROM pgembed_task AS task
                    WHERE {ready}
                      AND task.spec = first.spec
                      AND task.priority < first.priority
                    ORDER BY task.priority DESC, tenant, run_at, id
                    LIMIT 1
                )
              UNION ALL
                (
                    SELECT spec, priority::int, tenant, run_at, 1
                    FROM pgembed_task AS task
                    WHERE {ready}
                      AND task.spec > first.spec
                    ORDER BY spec, task.priority DESC, tenant, run_at, id
                    LIMIT 1
                )
            ) AS firsts
            -- In the order of the parts: those behind the first that finds one are not asked.
            LIMIT 1
        ) AS following
    )
""".replace("{ready}", turns.READY)

# Each part has an index of its own. They are ordered as in it: else the planner might read the
# whole table. Of those with a serial key, only the counted ones tell how long they have waited.
PENDING = """
    SELECT
        'pending',
        queue.spec,
        NULL::int,
        NULL::bigint,
        '' AS kind,
        is_due,
        sum(number)::bigint,
        bool_or(number >= %(limit)s),
        GREATEST(extract(epoch FROM statement_timestamp() - min(run_at)), 0)::float8,
        NULL::float8,
        NULL::bigint
    FROM (
        SELECT spec
        FROM unnest(%(queues)s::text[]) AS wanted(spec)
      UNION
        SELECT spec
        FROM first
        LIMIT %(most)s
    ) AS queue
    CROSS JOIN LATERAL (
        SELECT
            true AS is_due,
            count(*) AS number,
            (SELECT min(run_at) FROM first WHERE first.spec = queue.spec) AS run_at
        FROM (
            SELECT
            FROM pgembed_task AS task
            WHERE {ready}
              AND task.spec = queue.spec
            ORDER BY priority DESC, tenant
            LIMIT %(limit)s
        ) AS ready
      UNION ALL
        SELECT true, count(*), min(run_at)
        FROM (
            SELECT run_at
            FROM pgembed_task AS task
            WHERE {serial}
              AND task.spec = queue.spec
            ORDER BY priority DESC, tenant
            LIMIT %(limit)s
        ) AS serial
      UNION ALL
        SELECT run_at <= statement_timestamp(), count(*), min(run_at)
        FROM (
            SELECT run_at
            FROM pgembed_task AS task
            WHERE status = 'pending'
              AND run_at > GREATEST(created_at, found_due_at)
              AND crashes = 0
              AND outages = 0
              AND task.spec = queue.spec
            ORDER BY run_at
            LIMIT %(limit)s
        ) AS later
        GROUP BY 1
      UNION ALL
        SELECT run_at <= statement_timestamp(), count(*), min(run_at)
        FROM (
            SELECT run_at
            FROM pgembed_task AS task
            WHERE status = 'pending'
              AND (crashes > 0 OR outages > 0)
              AND task.spec = queue.spec
            ORDER BY run_at
            LIMIT %(limit)s
        ) AS suspect
        GROUP BY 1
    ) AS counted
    WHERE number > 0
    GROUP BY queue.spec, is_due
"""
PENDING = PENDING.replace("{ready}", turns.READY).replace("{serial}", turns.SERIAL)
COUNT = FIRSTS + "," + TASKS(FAILING) + PENDING + TASKS(ENDED_AND_RUNNING)

MAX_QUEUES = 100
"""How many queues are shown at most: anyone can enqueue tasks to any, and each name becomes a
metric."""


@dataclass(frozen=True, slots=True)
class QueueVerdict:
    """The state of a queue, with the reason in sentences for a person who is on call."""

    state: QueueState
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """The status of one queue of tasks."""

    key: str
    """Its name."""
    verdict: QueueVerdict = QueueVerdict("moving", "")
    is_declared: bool
    """Whether TASKS names it here."""
    waiting: Count
    """Its pending tasks."""
    later: Count
    """Those of them that are not due yet: for a later time, or after a failed attempt."""
    oldest_seconds: float
    """For how long the task has been due that has waited longest."""
    running: Count
    open_failures: Count
    dismissed: Count
    units_per_second: float
    """Tasks completed per second, the mean of the last minutes."""
    p50_seconds: float | None
    p99_seconds: float | None
    """p50 and p99 of the time from when a task was due to its start, in the last minutes."""
    workers: int
    """How many live workers work on it."""
    paused_by: str
    """Who has paused it by hand. Empty: it is not paused."""

    @property
    def ready(self) -> Count:
        """The number of tasks that could start now."""
        return Count(self.waiting.value - self.later.value, self.waiting.is_capped)


def count_tasks(names: Sequence[str], *, using: str, max_count: int | None = None) -> Queue:
    """Count the tasks of the named queues, and of others that have some, in one statement."""
    rows = database.rows(
        using,
        COUNT,
        queues=list(names),
        limit=max_count or MAX_COUNT,
        running=MAX_COUNT,
        tenants=MAX_TENANTS,
        most=len(names) + MAX_QUEUES,
    )
    return counted(rows, ())


def queue_statuses(
    names: Sequence[str] | None,
    queue: Queue,
    *,
    declared: Sequence[str],
    recent: Mapping[str, Point],
    workers: Sequence[WorkerStatus],
    paused: Mapping[str, str],
) -> tuple[QueueStatus, ...]:
    """Return the status of the named queues. None: of those that are declared or have tasks."""
    if names is None:
        busy = {*queue.backlog, *queue.running, *queue.failures}
        names = [*declared, *sorted(busy.difference(declared))[:MAX_QUEUES]]
    found = []
    for name in names:
        pending = queue.backlog.get(name, {}).get("", Backlog(""))
        point = recent.get(name, Point())
        ours = [worker for worker in workers if worker.is_live and name in worker.specs]
        status = QueueStatus(
            key=name,
            is_declared=name in declared,
            waiting=pending.waiting,
            later=pending.later,
            oldest_seconds=pending.oldest_seconds,
            running=queue.running.get(name, NONE),
            open_failures=queue.failures.get(name, NONE),
            dismissed=queue.dismissed.get(name, NONE),
            units_per_second=point.units_per_second,
            p50_seconds=point.quantile(0.5),
            p99_seconds=point.quantile(0.99),
            workers=len(ours),
            paused_by=paused.get(name, ""),
        )
        aside = [worker.aside[name] for worker in ours if name in worker.aside]
        moves = bool(point.completed or status.running)
        found.append(replace(status, verdict=judge(status, aside=aside, moves=moves)))
    return tuple(found)


def judge(queue: QueueStatus, *, aside: Sequence[str], moves: bool) -> QueueVerdict:
    """Return the worst state that applies to a queue, with all reasons for it.

    ``aside``: why workers leave it alone. ``moves``: whether a task runs, or was completed in the
    last minutes.
    """
    reasons: dict[QueueState, list[str]] = {state: [] for state in QUEUE_STATES}
    is_due = bool(queue.ready) or queue.oldest_seconds > 0
    tasks = "task waits" if queue.ready == Count(1) else "tasks wait"
    waits = f"{queue.ready} {tasks}, the oldest for {duration(queue.oldest_seconds)}"
    causes = (
        (queue.paused_by, f"Paused by {queue.paused_by}", ""),
        (not queue.workers and not queue.is_declared, "No worker has it, nor TASKS here", ""),
        (not queue.workers, "No worker is running", WORKER),
        (len(aside) == queue.workers, "No worker can take its tasks", aside[0] if aside else ""),
    )
    if found := [(cause, remedy) for applies, cause, remedy in causes if applies]:
        [(cause, remedy), *_] = found
        what = f": {waits}." if is_due else ". Nothing is due yet."
        reasons["stalled" if is_due else "degraded"].append(f"{cause}{what} {remedy}".rstrip())
    elif is_due and queue.oldest_seconds >= STUCK_SECONDS and not moves:
        reasons["stalled"].append(f"Nothing has been completed for minutes: {waits}.")
    elif is_due and queue.oldest_seconds >= LATE_SECONDS:
        reasons["degraded"].append(f"Tasks start late: {waits}.")
    if queue.open_failures:
        has = "task has" if queue.open_failures == Count(1) else "tasks have"
        reasons["degraded"].append(f"{queue.open_failures} {has} failed.")
    if 0 < len(aside) < queue.workers:
        some = f"{len(aside)} of {queue.workers} workers cannot take its tasks. {aside[0]}"
        reasons["degraded"].append(some)
    reasons["moving"].append("Tasks start as they are due." if is_due else "Nothing is due.")
    worst = max((state for state in QUEUE_STATES if reasons[state]), key=QUEUE_STATES.index)
    return QueueVerdict(worst, " ".join(reasons[worst]))
