"""What the tasks of the chaos benchmark do: take a while, and add rows."""

from __future__ import annotations

import random
import time
from typing import Any

from django.db import connection

from pgembed_django.tasks import task

SECONDS = (0.02, 0.08)


def _add(kind: str, number: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO done VALUES (%s, %s)", [kind, number])


@task
def plain(number: int) -> None:
    """Add a row at the beginning of each run, and one at its end."""
    _add("begun", number)
    time.sleep(random.uniform(*SECONDS))
    _add("plain", number)


@task(takes_context=True)
def completing(context: Any, number: int) -> None:
    """Add a row together with the end of the task."""
    time.sleep(random.uniform(*SECONDS))
    with context.completing():
        _add("completing", number)


@task(takes_context=True, once="{number}")
def once(context: Any, number: int) -> None:
    """Do the same. It is enqueued more than once under one key."""
    time.sleep(random.uniform(*SECONDS))
    with context.completing():
        _add("once", number)
