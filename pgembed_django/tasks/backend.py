"""The backend for ``TASKS``: enqueues in the caller's transaction, and reads results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import router

from pgembed_django.tasks import api, declaration
from pgembed_django.tasks.api import InvalidTask, TaskResult, TaskResultDoesNotExist

P = ParamSpec("P")
R = TypeVar("R")


class PostgresBackend(api.BaseTaskBackend):
    """Keeps tasks in ``pgembed_task``. ``embed_worker`` runs them."""

    task_class = declaration.Task
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Any) -> None:
        """Raise what keeps a task from this backend."""
        super().validate_task(task)
        if "." in task.queue_name:
            raise InvalidTask(f"A queue's name has no dot: {task.queue_name!r}.")
        if not task.func.__qualname__.isidentifier():
            raise InvalidTask(
                f"A worker could not import {task.module_path!r}. Task function must be defined at "
                "a module level, with def."
            )

    @property
    def database(self) -> str:
        """The alias of the database that tasks are in."""
        return database()

    def enqueue(
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult[Any, Any]:
        """Insert a task, in the caller's transaction if there is one.

        Raises:
            TypeError, ValueError: an argument cannot be stored as JSON.
        """
        from pgembed_django.tasks import enqueueing, moving, results

        self.validate_task(task)
        call = enqueueing.called(args, kwargs)
        enqueued = enqueueing.enqueue(task, call, using=self.database)
        if move := moving.of(self):
            moving.hand_over(move, task, enqueued.task_id, call, using=self.database)
        result = results.ready(task, enqueued, call, backend=self.alias)
        api.task_enqueued.send(type(self), task_result=result)
        return result

    def enqueue_many(
        self, task: Any, calls: Sequence[Mapping[str, Any]]
    ) -> list[TaskResult[Any, Any]]:
        """Insert many calls in one statement. See ``pgembed_django.tasks.enqueue_many``."""
        from pgembed_django.tasks import enqueueing, results

        self.validate_task(task)
        given = [enqueueing.called((), kwargs) for kwargs in calls]
        enqueued = enqueueing.enqueue_many(task, given, using=self.database)
        found = [
            results.ready(task, one, call, backend=self.alias)
            for one, call in zip(enqueued, given, strict=True)
        ]
        for result in found:
            api.task_enqueued.send(type(self), task_result=result)
        return found

    def get_result(self, result_id: str) -> TaskResult[Any, Any]:
        """Read a task or its kept result.

        Raises:
            TaskResultDoesNotExist: there is neither: it has succeeded, or there never was one.
            InvalidTask: its function is no longer there.
        """
        from pgembed_django.tasks import results

        if not (found := results.find(result_id, using=self.database, backend=self.alias)):
            raise TaskResultDoesNotExist(result_id)
        return found

    def check(self, **kwargs: Any) -> list[Any]:
        """Return the problems that the system check reports."""
        from pgembed_django.tasks import checks

        return [*checks.problems(self)]


def enqueue_many(
    task: api.Task[P, R], calls: Sequence[Mapping[str, Any]]
) -> list[TaskResult[P, R]]:
    """Enqueue many calls of a task, each given by its keyword arguments, in one statement.

    Returns their results in the same order.
    """
    backend = task.get_backend()
    if isinstance(backend, PostgresBackend):
        return backend.enqueue_many(task, calls)
    enqueue: Any = task.enqueue
    return [enqueue(**kwargs) for kwargs in calls]  # with the backend of a test, say


def queues(names: str | None = None) -> list[str]:
    """Return the queues of this backend in ``TASKS``, or those that are named, with commas.

    Raises:
        ImproperlyConfigured: one that is named is not in TASKS.
    """
    backends = [one for one in api.task_backends.all() if isinstance(one, PostgresBackend)]
    known = sorted({queue for backend in backends for queue in backend.queues})
    if names is None:
        return known
    wanted = [name for name in names.split(",") if name]
    if unknown := [name for name in wanted if name not in known]:
        raise ImproperlyConfigured(
            f"No queue {unknown[0]!r} in TASKS. There are: {', '.join(known) or 'none'}."
        )
    return wanted


def database() -> str:
    """Return the alias of the database that tasks are in."""
    from pgembed_django.models import Task

    return router.db_for_write(Task)
