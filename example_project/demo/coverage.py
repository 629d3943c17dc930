"""Watch the worker until a search can find every row."""

from __future__ import annotations

import time
from datetime import datetime

from blog.models import ArticleEmbedding
from django.db import connection
from library.models import Entry, EntryEmbedding
from website import freshness, hits

from demo.exceptions import DemoFailed
from demo.processes import Process
from demo.progress import bar
from pgembed_django.models import Worker

LOOK_SECONDS = 0.2


def now() -> datetime:
    """Return the time by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment


def state() -> freshness.Freshness:
    """Return how many rows of both tables a search can find."""
    parts = (
        freshness.of(Entry.objects.all(), EntryEmbedding, newest=True),
        freshness.of(hits.published(), ArticleEmbedding, newest=True),
    )
    return freshness.Freshness(
        total=sum(part.total for part in parts),
        embedded=sum(part.embedded for part in parts),
        waiting=sum(part.waiting for part in parts),
        failed=sum(part.failed for part in parts),
    )


def embedded_since(moment: datetime) -> int:
    """Return how many rows got a vector after ``moment``."""
    return sum(
        model.objects.filter(created_at__gte=moment, embedding__isnull=False)
        .values("source_id")
        .distinct()
        .count()
        for model in (EntryEmbedding, ArticleEmbedding)
    )


def wait_for_worker(worker: Process, *, timeout_seconds: float) -> None:
    """Wait until the worker has started."""
    deadline = time.monotonic() + timeout_seconds
    while not Worker.objects.filter(pid=worker.popen.pid).exists():
        worker.require_alive()
        if time.monotonic() > deadline:
            raise DemoFailed(
                f"The worker has not begun within {timeout_seconds:.0f} s.{worker.last_lines()}"
            )
        time.sleep(0.05)


def wait_until_complete(
    worker: Process, *, timeout_seconds: float, show: bool = True
) -> freshness.Freshness:
    """Show the coverage while it grows, and return once it is complete.

    Raises:
        DemoFailed: the worker died, or made no progress for ``timeout_seconds``.
    """
    seen = state()
    moved_at = time.monotonic()
    show = show and not seen.is_complete
    with bar("embedding", total=seen.total, done=seen.embedded, show=show) as progress:
        while not seen.is_complete:
            worker.require_alive()
            time.sleep(LOOK_SECONDS)
            before, seen = seen, state()
            progress.total = seen.total
            progress.update(seen.embedded - before.embedded)
            if seen != before:
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > timeout_seconds:
                raise DemoFailed(
                    f"Nothing has moved for {timeout_seconds:.0f} s: {seen}.{worker.last_lines()}"
                )
    return seen
