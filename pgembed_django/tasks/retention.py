"""The chores of a worker that runs tasks: make partitions ahead, and delete what has had its time.

Open failures are never deleted. Batches are small, and pass over rows that others have locked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from pgembed_django.core import database
from pgembed_django.models import Task, TaskBatch, TaskKey, TaskOutcome
from pgembed_django.models.job import DISMISSED, ENDED
from pgembed_django.queue.jobs.leases import unlocked
from pgembed_django.queue.maintenance import PRUNE_SECONDS, Chore
from pgembed_django.tasks import records

LIMIT = 5000
PARTITION_SECONDS = 3600.0

KEEP_BATCHES = timedelta(days=7)
KEEP_OUTCOMES = timedelta(days=90)


class Retention:
    """What a worker deletes, one small chore each. All of them return 0: no task became ready."""

    def __init__(self, *, using: str, keep_seconds: float, is_stopping: Callable[[], bool]) -> None:
        self._using = using
        self._keep = timedelta(seconds=keep_seconds)
        self._is_stopping = is_stopping

    @property
    def short(self) -> Sequence[Chore]:
        """The chores that take no long."""
        return [
            Chore(PARTITION_SECONDS, self.make_partitions),
            Chore(PRUNE_SECONDS, self.prune_tasks),
            Chore(PRUNE_SECONDS, self.prune_keys),
            Chore(PRUNE_SECONDS, self.prune_batches),
            Chore(PRUNE_SECONDS, self.prune_outcomes),
        ]

    @property
    def long(self) -> Sequence[Chore]:
        """The chores that may wait for older transactions."""
        return [Chore(PARTITION_SECONDS, self.drop_partitions)]

    def make_partitions(self) -> int:
        """Make the partitions of kept results ahead."""
        records.make_partitions(using=self._using)
        return 0

    def drop_partitions(self) -> int:
        """Drop the partitions of kept results that have all expired."""
        records.drop_expired(using=self._using)
        return 0

    def prune_tasks(self) -> int:
        """Delete failed tasks that a person has settled, and dismissed ones after a week."""
        tasks = Task.objects.using(self._using)
        self._delete(tasks.filter(ENDED, finished_at__lt=Now() - self._keep))
        self._delete(tasks.filter(DISMISSED, run_at__lt=Now()))  # a dismissal sets it
        return 0

    def prune_keys(self) -> int:
        """Delete keys that have expired: they may be used again."""
        self._delete(TaskKey.objects.using(self._using).filter(expires_at__lt=Now()))
        return 0

    def prune_batches(self) -> int:
        """Delete batches a week after the last of their tasks has ended."""
        batches = TaskBatch.objects.using(self._using)
        self._delete(batches.filter(ended_at__lt=Now() - KEEP_BATCHES))
        return 0

    def prune_outcomes(self) -> int:
        """Delete what two consumers side by side have made of their tasks, after a while."""
        outcomes = TaskOutcome.objects.using(self._using)
        self._delete(outcomes.filter(ended_at__lt=Now() - KEEP_OUTCOMES))
        return 0

    def _delete(self, rows: QuerySet[Any]) -> None:
        while not self._is_stopping():
            with transaction.atomic(using=self._using):
                if not database.delete(unlocked(rows[:LIMIT])):
                    return
