"""Cancel a task: delete it while it waits, or ask the worker that runs it to stop."""

from __future__ import annotations

from typing import Any

from django.db import router

from pgembed_django.core import database
from pgembed_django.models import Job, Task
from pgembed_django.tasks import results

# The note locks the task, so that no worker can start it before it is deleted.
NOTE = """
    UPDATE pgembed_task
    SET cancel_asked_at = COALESCE(cancel_asked_at, statement_timestamp())
    WHERE id = %(id)s
      AND status IN ('pending', 'running')
    RETURNING status
"""
DELETE = "DELETE FROM pgembed_task WHERE id = %(id)s"


def cancel(result: Any) -> str:
    """See ``pgembed_django.tasks.cancel``."""
    if (task_id := results.id_of(str(getattr(result, "id", result)))) is None:
        return "gone"
    using = router.db_for_write(Task)
    try:
        with database.giving_way(using):
            return cancel_one(task_id, using=using)
    except database.Busy:
        return "busy"


def cancel_one(task_id: int, *, using: str) -> str:
    """Cancel a task, in the caller's transaction. Returns what has come of it, see ``cancel``."""
    noted = database.rows(using, NOTE, id=task_id)
    if not noted:
        return "gone"
    if noted != [(Job.Status.PENDING,)]:
        return "asked"
    database.execute(using, DELETE, id=task_id)
    return "canceled"
