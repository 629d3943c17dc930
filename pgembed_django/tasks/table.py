"""The table of tasks, as the queue's verbs see it."""

from __future__ import annotations

from pgembed_django.models import Task
from pgembed_django.queue.jobs import Table

TASKS = Table(
    Task,
    newer=(
        "newer.is_coalesced AND newer.spec = job.spec AND newer.source_pk = job.source_pk "
        "AND newer.tenant = job.tenant AND newer.kind = job.kind AND job.is_coalesced"
    ),
    beside="other.spec = job.spec AND other.serial = job.serial",
    has_units=False,
)
