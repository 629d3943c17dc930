"""What Django calls a task's result: its state, errors and return value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django.db.models.functions import Now
from django.utils.module_loading import import_string

from pgembed_django.models import Attempt, Job, Task, TaskRecord, Worker
from pgembed_django.tasks import api
from pgembed_django.tasks.api import InvalidTask, TaskError, TaskResult, TaskResultStatus

if TYPE_CHECKING:
    from pgembed_django.tasks.enqueueing import Call, Enqueued

STATUSES = {
    Job.Status.PENDING.value: TaskResultStatus.READY,
    Job.Status.RUNNING.value: TaskResultStatus.RUNNING,
    Job.Status.SUCCEEDED.value: TaskResultStatus.SUCCESSFUL,
    Job.Status.FAILED.value: TaskResultStatus.FAILED,
    Job.Status.DISMISSED.value: TaskResultStatus.FAILED,
}

CLASS = re.compile(r"\A(\w+(?:\.\w+)+): ")
"""How the error of an attempt begins, if the function raised it."""

NO_CLASS = "pgembed_django.exceptions.PgembedError"
"""The class of errors that no function raised: its worker is lost, say."""

MAX_ID = 2**63 - 1
MAX_DIGITS = 19


def declared(function: str) -> Any:
    """Return the task of a dotted path.

    Raises:
        InvalidTask: there is none.
    """
    try:
        found = import_string(function)
    except Exception as error:  # importing runs a project's code
        raise InvalidTask(f"There is no task {function}: {error}") from error
    if not isinstance(found, api.Task):
        raise InvalidTask(f"{function} is no task: decorate it with @task.")
    return found


def ready(task: Any, enqueued: Enqueued, call: Call, *, backend: str) -> TaskResult[Any, Any]:
    """Return the result of a call that was just enqueued."""
    return TaskResult(
        task=task,
        id=str(enqueued.task_id),
        status=TaskResultStatus.READY,
        enqueued_at=enqueued.at,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=call.args,
        kwargs=call.kwargs,
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def id_of(result_id: object) -> int | None:
    """Return the id of the task that a result's id names, or None if there can be none."""
    if not (isinstance(result_id, str) and result_id.isascii() and result_id.isdecimal()):
        return None
    # Python converts no number of thousands of digits.
    task_id = int(result_id) if len(result_id) <= MAX_DIGITS else MAX_ID + 1
    return task_id if task_id <= MAX_ID else None


def find(result_id: str, *, using: str, backend: str) -> TaskResult[Any, Any] | None:
    """Return a task's result, if the task or its kept result is there.

    Raises:
        InvalidTask: its function is no longer there.
    """
    if (task_id := id_of(result_id)) is None:
        return None
    if (row := Task.objects.using(using).filter(pk=task_id).first()) is not None:
        return of_row(row, backend=backend)
    kept = TaskRecord.objects.using(using).filter(pk=task_id, expires_at__gt=Now())
    if (record := kept.first()) is not None:
        return of_record(record, backend=backend)
    return None


def of_row(row: Task, *, backend: str) -> TaskResult[Any, Any]:
    """Return the result of a task that has not succeeded."""
    attempts = _attempts(row, row.unit)
    workers = [attempt.worker for attempt in attempts]
    if row.status == Job.Status.RUNNING:
        worker = Worker.objects.using(row._state.db).filter(pk=row.worker_id or 0).first()
        workers.append(str(worker or f"#{row.worker_id}"))
    was_deferred = row.run_at > row.created_at and not row.claims
    return TaskResult(
        task=_task(row, run_after=row.run_at if was_deferred else None, backend=backend),
        id=str(row.pk),
        status=STATUSES[row.status],
        enqueued_at=row.created_at,
        started_at=min((one.started_at for one in attempts), default=row.started_at),
        finished_at=row.finished_at,
        last_attempted_at=row.started_at,
        **_arguments(row),
        backend=backend,
        errors=[_error(attempt.error) for attempt in attempts],
        worker_ids=workers,
    )


def of_record(record: TaskRecord, *, backend: str) -> TaskResult[Any, Any]:
    """Return the kept result of a task that has succeeded."""
    attempts = _attempts(record, str(record.pk))
    result: TaskResult[Any, Any] = TaskResult(
        task=_task(record, run_after=None, backend=backend),
        id=str(record.pk),
        status=TaskResultStatus.SUCCESSFUL,
        enqueued_at=record.created_at,
        started_at=min((one.started_at for one in attempts), default=record.started_at),
        finished_at=record.finished_at,
        last_attempted_at=record.started_at,
        **_arguments(record),
        backend=backend,
        errors=[_error(attempt.error) for attempt in attempts],
        worker_ids=[*(attempt.worker for attempt in attempts), record.worker],
    )
    object.__setattr__(result, "_return_value", record.result)
    return result


def _attempts(row: Any, unit: str) -> list[Attempt]:
    """Return the attempts that failed. Those of former calls under the same key are not its own."""
    attempts = Attempt.objects.using(row._state.db).filter(spec=row.queue, source_pk=unit)
    return [*attempts.filter(started_at__gte=row.created_at).order_by("id")]


def _task(row: Any, *, run_after: Any, backend: str) -> Any:
    """Return the task as it was enqueued, or as it is declared if that is no longer allowed."""
    task = declared(row.function)
    try:
        return task.using(
            priority=row.priority, queue_name=row.queue, run_after=run_after, backend=backend
        )
    except InvalidTask:
        return task


def _arguments(row: Any) -> dict[str, Any]:
    """Return args and kwargs. SQL may have enqueued the keyword arguments alone."""
    return {
        "args": row.arguments.get("args", []),
        "kwargs": row.arguments.get("kwargs", {}),
    }


def _error(said: str) -> TaskError:
    """Return an attempt's error: the class and message, then the traceback if there is one."""
    if (found := CLASS.match(said)) is None:
        return TaskError(exception_class_path=NO_CLASS, traceback=said)
    _, _, trace = said.partition("\n")
    # It is stored without its last newline.
    return TaskError(exception_class_path=found[1], traceback=f"{trace}\n" if trace else said)
