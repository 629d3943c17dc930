"""What a task of a tenant runs in: a context manager of the project's own, named in TASKS."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from django.utils.module_loading import import_string

Enter = Callable[[str], AbstractContextManager[object]]


def context_of(task: Any) -> Enter | None:
    """Return what OPTIONS["tenant_context"] of a task's backend names, or None.

    Raises:
        ImportError: there is nothing of that name.
    """
    path = getattr(task.get_backend(), "options", {}).get("tenant_context")
    return import_string(path) if path else None
