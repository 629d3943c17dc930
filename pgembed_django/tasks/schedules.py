"""Schedules: each task with ``every`` has one run that is yet to end.

The next one is inserted in the transaction that ends a run, whether it has succeeded or failed for
good. A chore adds what is missing. Times that nobody was there for are made up by one run.
"""

from __future__ import annotations

import math
import zlib
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from cronsim import CronSim
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from pgembed_django.core import database
from pgembed_django.models import Task
from pgembed_django.queue.maintenance import NOW
from pgembed_django.tasks import backend, declaration, enqueueing, results
from pgembed_django.tasks.api import InvalidTask

CRON_SPREAD_SECONDS = 10
"""Runs by cron lines start so many seconds late at most, so that they do not all start at once."""

UNFINISHED = ("pending", "running")

PRECISION = timedelta(milliseconds=1)
"""Of the times of intervals that are no whole seconds."""


def next_run(task: declaration.Task[Any, Any], now: datetime) -> datetime:
    """Return when a task is to run next. Cron lines are in the project's time zone.

    Intervals are counted from an instant that depends on the task's path: those of one length
    start apart from each other, and do not drift.
    """
    spread = zlib.crc32(task.module_path.encode())
    if isinstance(task.every, timedelta):
        seconds = task.every.total_seconds()
        offset = spread % max(int(seconds), 1)
        turns = math.floor((now.timestamp() - offset) / seconds) + 1
        return datetime.fromtimestamp(offset + turns * seconds, UTC)
    late = timedelta(seconds=spread % CRON_SPREAD_SECONDS)
    local = (now - late).astimezone(timezone.get_default_timezone())
    # In the hour that summer time's end repeats, the first ones are of the hour that was.
    found = (one.astimezone(UTC) + late for one in CronSim(str(task.every), local))
    return next(due for due in found if due > now)


def insert_next(task: Any, *, started_at: datetime | str | None = None, using: str) -> None:
    """Insert a task's next run, unless there is one. ``started_at``: when the last one began.

    Until the next one begins, its row keeps that, for people.
    """
    if getattr(task, "every", None) is None:
        return
    due = task.using(run_after=_stored(next_run(task, _now(using))))
    run = enqueueing.enqueue(due, enqueueing.Call([], {}), using=using, is_scheduled=True)
    if run.task_id and started_at is not None:
        Task.objects.using(using).filter(pk=run.task_id).update(started_at=started_at)


def known() -> dict[str, declaration.Task[Any, Any]]:
    """Return the tasks with ``every`` that the modules ``tasks`` of all apps declare, by path."""
    autodiscover_modules("tasks")
    return {
        path: task
        for path, task in declaration.scheduled.items()
        if isinstance(task.get_backend(), backend.PostgresBackend)
    }


def restore(*, using: str) -> int:
    """Add runs that are missing, move those of changed schedules, and delete those of former ones.

    Returns how many were added or moved.
    """
    tasks = known()
    unfinished = Task.objects.using(using).filter(is_scheduled=True, status__in=UNFINISHED)
    there = {one.function: one for one in unfinished.filter(function__in=tasks)}
    changed = 0
    for path, task in tasks.items():
        if (run := there.get(path)) is None:
            insert_next(task, using=using)
            changed += 1
        elif run.status == "pending" and not run.claims and _is_moved(task, run):
            # Not one that a person runs now.
            ahead = unfinished.filter(pk=run.pk, status="pending", claims=0, run_at__gt=Now())
            changed += ahead.update(run_at=_stored(next_run(task, _now(using))))
    for run in unfinished.exclude(function__in=tasks).filter(status="pending", claims=0):
        # Not of functions that only newer code has.
        with suppress(InvalidTask):
            if getattr(results.declared(run.function), "every", None) is None:
                database.delete(unfinished.filter(pk=run.pk, status="pending", claims=0))
    return changed


def _is_moved(task: declaration.Task[Any, Any], run: Task) -> bool:
    """Return whether a run's time is none of its schedule, which has changed since."""
    due = run.run_at if timezone.is_aware(run.run_at) else timezone.make_aware(run.run_at)
    return abs(next_run(task, due - PRECISION) - due) > PRECISION


def _now(using: str) -> datetime:
    """Return the database's time: by a clock that is behind, a run would be due again at once."""
    [[seconds]] = database.rows(using, NOW)
    return datetime.fromtimestamp(seconds, UTC)


def _stored(moment: datetime) -> datetime:
    """Return a moment as Django stores it: without a time zone if ``USE_TZ`` is False."""
    return moment if timezone.is_aware(timezone.now()) else timezone.make_naive(moment)
