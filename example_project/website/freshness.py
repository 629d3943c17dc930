"""Count how many rows a search finds, for the search page and the demo's progress bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgembed_django.models import Job, Space

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from pgembed_django.models import AbstractEmbedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Counts of rows, of rows that a search finds, of unfinished jobs and of open failures."""

    total: int
    embedded: int
    waiting: int
    failed: int

    @property
    def is_complete(self) -> bool:
        return self.embedded >= self.total and not self.waiting

    def __str__(self) -> str:
        text = f"{self.embedded:,} of {self.total:,} rows embedded, {self.waiting:,} waiting"
        return f"{text}, {self.failed:,} failed" if self.failed else text


def of(
    rows: QuerySet[Any], embeddings: type[AbstractEmbedding], *, newest: bool = False
) -> Freshness:
    """Count ``rows``, and how many of them a search would find now.

    ``newest``: count for the space that is being built, if there is one.
    """
    spaces = Space.objects.filter(spec=embeddings._meta.label)
    if newest:
        space = spaces.exclude(state=Space.State.RETIRED).order_by("pk").last()
    else:
        space = spaces.filter(state=Space.State.ACTIVE).first()
    found = embeddings.objects.filter(space=space, embedding__isnull=False)
    jobs = Job.objects.filter(spec=embeddings._meta.label)
    return Freshness(
        total=rows.count(),
        embedded=found.values("source_id").distinct().count() if space else 0,
        waiting=jobs.filter(status__in=[Job.Status.PENDING, Job.Status.RUNNING]).count(),
        failed=jobs.filter(status=Job.Status.FAILED, settled_at=None).count(),
    )
