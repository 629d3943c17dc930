"""Our tables. Only ``jobs``, ``quotas``, ``rollups``, ``spaces``, ``store`` and ``tasks`` write.

There are two exceptions: ``spaces`` writes scan cursors, and a worker writes its own row.
"""

from pgembed_django.models.abstract_embedding import AbstractEmbedding
from pgembed_django.models.attempt import Attempt
from pgembed_django.models.job import Ending, Job, Ripple, Rollup
from pgembed_django.models.operations import Pause, Quota, ReplicationSlot, ScanCursor, Worker
from pgembed_django.models.publication import Published
from pgembed_django.models.space import Space, StagedVector
from pgembed_django.models.task import (
    Task,
    TaskBatch,
    TaskKey,
    TaskOutcome,
    TaskRate,
    TaskRecord,
)

__all__ = [
    "AbstractEmbedding",
    "Attempt",
    "Ending",
    "Job",
    "Pause",
    "Published",
    "Quota",
    "ReplicationSlot",
    "Ripple",
    "Rollup",
    "ScanCursor",
    "Space",
    "StagedVector",
    "Task",
    "TaskBatch",
    "TaskKey",
    "TaskOutcome",
    "TaskRate",
    "TaskRecord",
    "Worker",
]
