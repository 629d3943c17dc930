"""Batches: tasks that are enqueued together, and one that follows when all of them have ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgembed_django.core import database
from pgembed_django.models import Task, TaskBatch
from pgembed_django.models.job import PENDING, RUNNING
from pgembed_django.tasks import api, backend, declaration
from pgembed_django.tasks.api import InvalidTask, TaskResult
from pgembed_django.triggers import sql

Call = tuple[Any, Sequence[Any], Mapping[str, Any]]
"""A task, and the arguments of a call of it."""

ENQUEUE = "SELECT {function}(%(tasks)s::jsonb, %(following)s::jsonb)"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a batch has come, in tasks."""

    total: int
    ended: int
    failed: int
    """Of those that have ended."""
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that was enqueued."""

    id: int
    using: str
    backend: str

    def progress(self) -> Progress:
        """Return how many of its tasks have ended.

        Raises:
            TaskBatch.DoesNotExist: it ended more than a week ago.
        """
        found = TaskBatch.objects.using(self.using).get(pk=self.id)
        tasks = Task.objects.using(self.using).filter(PENDING | RUNNING, batch_id=self.id)
        # After the end, those are of no account that a person has retried.
        left = 0 if found.ended_at else tasks.count()
        return Progress(found.total, found.total - left, found.failed, found.ended_at)

    def following(self) -> TaskResult[Any, Any] | None:
        """Return the task that followed, if it has been enqueued and is still known."""
        from pgembed_django.tasks import results

        found = TaskBatch.objects.using(self.using).get(pk=self.id)
        if found.following_id is None:
            return None
        return results.find(str(found.following_id), using=self.using, backend=self.backend)


def batch(calls: Iterable[Call], *, then: Call | None = None) -> Batch:
    """Enqueue calls together, in the caller's transaction, and ``then`` when all have ended.

    A task has ended when it has succeeded, failed for good or been canceled. ``then`` is enqueued
    in the transaction of the last end, and at once if there are no calls.

    Raises:
        InvalidTask: a call has a key of ``once`` or ``coalesce``, ``then`` has a time of its own,
            or one is for another backend.
    """
    using = backend.database()
    tasks = [_given(call) for call in calls]
    following = None if then is None else _given(then, is_last=True)
    statement = ENQUEUE.replace("{function}", sql.qualified("pgembed_enqueue_batch_v1"))
    given = {"tasks": json.dumps(tasks), "following": json.dumps(following) if following else None}
    [[batch_id]] = database.rows(using, statement, **given)
    alias = then[0].backend if then else api.DEFAULT_TASK_BACKEND_ALIAS
    return Batch(batch_id, using, alias)


def _given(call: Call, *, is_last: bool = False) -> dict[str, Any]:
    task, args, kwargs = call
    task_backend = task.get_backend()
    if not isinstance(task_backend, backend.PostgresBackend):
        raise InvalidTask(f"{task.module_path} has the backend {task.backend!r}, which is another.")
    task_backend.validate_task(task)
    if is_last and task.run_after is not None:
        raise InvalidTask(f"{task.module_path} follows at once: take its run_after away.")
    keys = task.keys(args, kwargs) if isinstance(task, declaration.Task) else {}
    if keys.get("coalesce") or (keys.get("once") and not is_last):
        raise InvalidTask(
            f"{task.module_path} has a key of once or coalesce: a batch counts each of its tasks."
        )
    given = {
        "function": task.module_path,
        "arguments": {"args": [*args], "kwargs": {**kwargs}},
        "queue": task.queue_name,
        "tenant": keys.get("tenant", ""),
        "priority": task.priority,
        "serial": keys.get("serial") or None,
    }
    if is_last:
        given["once"] = keys.get("once") or None
    elif task.run_after is not None:
        given["run_after"] = task.run_after.isoformat()
    return given
