"""Our tables. Only ``jobs``, ``quotas``, ``spaces`` and ``store`` write to them."""

from pgembed_django.models.embedding import AbstractEmbedding
from pgembed_django.models.job import Job
from pgembed_django.models.operations import Lap, Quota, Worker
from pgembed_django.models.space import Space, StagedVector

__all__ = ["AbstractEmbedding", "Job", "Lap", "Quota", "Space", "StagedVector", "Worker"]
