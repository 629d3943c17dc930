"""Enqueue tasks by the SQL functions that triggers and other languages call too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pgembed_django.core import database
from pgembed_django.tasks import arguments, declaration
from pgembed_django.triggers import sql

# The time is that of the row, if it is a new one.
ENQUEUE = """
    SELECT
        {function}(
            function => %(function)s,
            arguments => %(arguments)s::jsonb,
            queue => %(queue)s,
            tenant => %(tenant)s,
            priority => %(priority)s,
            run_after => %(run_after)s::timestamptz,
            once => %(once)s,
            once_for => %(once_for)s::interval,
            coalesce_key => %(coalesce_key)s,
            bump => %(bump)s,
            max_wait => %(max_wait)s * interval '1 second',
            serial => %(serial)s,
            is_scheduled => %(is_scheduled)s
        ),
        statement_timestamp()
"""
ENQUEUE_MANY = """
    SELECT
        {function}(
            function => %(function)s,
            calls => %(calls)s::jsonb,
            queue => %(queue)s,
            priority => %(priority)s,
            run_after => %(run_after)s::timestamptz,
            once_for => %(once_for)s::interval,
            bump => %(bump)s,
            max_wait => %(max_wait)s * interval '1 second'
        ),
        statement_timestamp()
"""


class Call(NamedTuple):
    """The arguments of a call, as they are stored."""

    args: list[Any]
    kwargs: dict[str, Any]


class Enqueued(NamedTuple):
    """A call that was enqueued: its own id, or that of the first one under its key."""

    task_id: int
    """Zero: none, as its schedule has a run already."""
    at: datetime


def enqueue(task: Any, call: Call, *, using: str, is_scheduled: bool = False) -> Enqueued:
    """Enqueue a call of ``called``. ``is_scheduled``: if its schedule has no run yet."""
    [row] = database.rows(
        using,
        ENQUEUE.replace("{function}", sql.qualified("pgembed_enqueue_task_v1")),
        arguments=arguments.stored(*call),
        is_scheduled=is_scheduled,
        **_keys(task, call),
        **_of_all_calls(task),
    )
    task_id, at = row
    return Enqueued(task_id or 0, at)


def enqueue_many(task: Any, calls: Sequence[Call], *, using: str) -> list[Enqueued]:
    """Enqueue many calls in one statement. Returns them in the same order."""
    given = [
        {"arguments": {"args": call.args, "kwargs": call.kwargs}, **_keys(task, call)}
        for call in calls
    ]
    [[task_ids, at]] = database.rows(
        using,
        ENQUEUE_MANY.replace("{function}", sql.qualified("pgembed_enqueue_tasks_v1")),
        calls=json.dumps(given, ensure_ascii=False),
        **_of_all_calls(task),
    )
    return [Enqueued(task_id, at) for task_id in task_ids]


def called(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a call's arguments in the form in which the function will get them.

    Raises:
        TypeError, ValueError: one of them cannot be stored as JSON.
    """
    return Call(*arguments.normalized(args, kwargs))


def _keys(task: Any, call: Call) -> dict[str, str | None]:
    keys = task.keys(*call) if isinstance(task, declaration.Task) else {}
    return {
        "tenant": _storable("tenant", keys.get("tenant", "")),
        "once": _storable("once", keys.get("once")) or None,
        "coalesce_key": _storable("coalesce", keys.get("coalesce")) or None,
        "serial": _storable("serial", keys.get("serial")) or None,
    }


def _storable(name: str, key: str | None) -> str | None:
    return None if key is None else arguments.text(key, name)


def _of_all_calls(task: Any) -> dict[str, Any]:
    return {
        "function": task.module_path,
        "queue": task.queue_name,
        "priority": task.priority,
        "run_after": task.run_after,
        "once_for": getattr(task, "once_for", declaration.WEEK),
        "bump": getattr(task, "bump", "keep"),
        "max_wait": getattr(task, "max_wait", None),
    }
