"""Our tables. Only ``jobs``, ``spaces`` and ``store`` write to them."""

from pgembed_django.models.embedding import AbstractEmbedding
from pgembed_django.models.job import Job
from pgembed_django.models.operations import Lap, Worker
from pgembed_django.models.space import Space, StagedVector

__all__ = ["AbstractEmbedding", "Job", "Lap", "Space", "StagedVector", "Worker"]
