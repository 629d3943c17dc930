"""Our tables. Only ``jobs``, ``quotas``, ``rollups``, ``spaces`` and ``store`` write to them.

There are two exceptions: ``maintenance`` writes laps, and a worker writes its own row.
An early switch of ``spaces`` begins a lap, too.
"""

from pgembed_django.models.abstract_embedding import AbstractEmbedding
from pgembed_django.models.attempt import Attempt
from pgembed_django.models.job import Ending, Job, Rollup
from pgembed_django.models.operations import Lap, Pause, Quota, Worker
from pgembed_django.models.space import Space, StagedVector

__all__ = [
    "AbstractEmbedding",
    "Attempt",
    "Ending",
    "Job",
    "Lap",
    "Pause",
    "Quota",
    "Rollup",
    "Space",
    "StagedVector",
    "Worker",
]
