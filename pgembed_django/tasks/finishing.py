"""End tasks that have succeeded: delete them, or move them to the kept results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pgembed_django.core import database
from pgembed_django.tasks import schedules

# In the order of ids, so that two workers that end batches lock these in one order mostly.
COMPLETE = """
    WITH done AS (
        DELETE FROM pgembed_task AS task
        USING unnest(%(ids)s::bigint[], %(results)s::text[], %(keeps)s::float8[])
            AS ended(id, result, keep)
        WHERE task.id = ended.id
          AND task.id = ANY(%(ids)s::bigint[])
        RETURNING task.*, ended.result, ended.keep
    ),
    kept AS (
        INSERT INTO pgembed_taskrecord (
            id, queue, function, arguments, tenant, priority, claims, worker, result, created_at,
            started_at, finished_at, expires_at
        )
        SELECT
            id,
            spec,
            kind,
            arguments,
            tenant,
            priority,
            claims,
            COALESCE(
                (SELECT host || ':' || pid FROM pgembed_worker WHERE id = done.worker_id),
                '#' || worker_id
            ),
            result::jsonb,
            created_at,
            started_at,
            statement_timestamp(),
            statement_timestamp() + keep * interval '1 second'
        FROM done
        WHERE keep > 0
    )
    SELECT id, extract(epoch FROM started_at - GREATEST(run_at, created_at))::float8
    FROM done
    WHERE is_awaited
"""


class Ended(NamedTuple):
    """A task that has succeeded: what it returned, and for how many seconds that is kept."""

    task_id: int
    result: Any = None
    keep_seconds: float = 0
    task: Any = None
    started_at: str | None = None


def complete(ended: list[Ended], *, using: str) -> Callable[[], Mapping[int, float]]:
    """End held tasks, in the transaction that holds them.

    Returns what reads how many seconds each one that somebody waits for waited for its start.
    """
    ended = sorted(ended, key=lambda one: one.task_id)
    read = database.send_prepared(
        using,
        COMPLETE,
        ids=[one.task_id for one in ended],
        results=[json.dumps(one.result) for one in ended],
        keeps=[one.keep_seconds for one in ended],
    )
    for one in ended:
        if getattr(one.task, "every", None) is not None:
            schedules.insert_next(one.task, started_at=one.started_at, using=using)
    return lambda: dict(read())
