"""The names of Django's API for tasks: of ``django.tasks``, or on Django 5.2 of its backport."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import django

# Type checkers read Django's own: the backport has the same classes under some other names.
if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import (
        DEFAULT_TASK_BACKEND_ALIAS,
        DEFAULT_TASK_QUEUE_NAME,
        Task,
        TaskContext,
        TaskResult,
        TaskResultStatus,
        task_backends,
    )
    from django.tasks import task as django_task
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    import django_tasks.checks  # noqa: F401 - registers the check, as Django's own package does
    from django_tasks import (
        DEFAULT_TASK_BACKEND_ALIAS,
        DEFAULT_TASK_QUEUE_NAME,
        TaskContext,
        TaskResult,
        TaskResultStatus,
        task_backends,
    )
    from django_tasks import task as django_task
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started

if TYPE_CHECKING:
    GenericTask = Task
else:

    class GenericTask:
        """What a generic subclass of ``Task`` derives from: at run time Django's is not generic."""

        def __class_getitem__(cls, parameters):
            return Task


_logger = logging.getLogger(Task.__module__.removesuffix(".base"))


def is_received(signal: Any, *, is_failed: bool) -> bool:
    """Return whether a signal has a receiver, other than Django's own, whose log is off."""
    level = logging.ERROR if is_failed else logging.INFO
    return len(signal.receivers) > 1 or _logger.isEnabledFor(level)


__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "DEFAULT_TASK_QUEUE_NAME",
    "BaseTaskBackend",
    "GenericTask",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "django_task",
    "is_received",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
