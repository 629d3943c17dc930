"""Our tables. Only ``jobs``, ``quotas``, ``spaces`` and ``store`` write to them."""

from pgembed_django.models.attempt import Attempt
from pgembed_django.models.embedding import AbstractEmbedding
from pgembed_django.models.job import Job
from pgembed_django.models.operations import Lap, Pause, Quota, Worker
from pgembed_django.models.rollup import Rollup
from pgembed_django.models.space import Space, StagedVector

__all__ = [
    "AbstractEmbedding",
    "Attempt",
    "Job",
    "Lap",
    "Pause",
    "Quota",
    "Rollup",
    "Space",
    "StagedVector",
    "Worker",
]
