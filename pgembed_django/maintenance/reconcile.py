"""Walk the tables for gaps, and enqueue what is found behind the writes.

A lap goes over one table in pages, in the order of its key. Its cursor is shared: each
worker takes the next page, nobody leads. A page is found and enqueued in one short
transaction, which keeps TRUNCATE out between the two.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from pgembed_django import jobs, spaces
from pgembed_django.maintenance import gaps
from pgembed_django.models import Job, Lap, Space
from pgembed_django.specs import Spec

logger = logging.getLogger("pgembed_django")

PAGE_ROWS = 1000
MAX_BACKLOG = 10_000


class Page(NamedTuple):
    """What one page brought: jobs added, and whether it was the lap's last."""

    enqueued: int
    is_last: bool


def reconcile_once(spec: Spec, *, using: str, deep: bool = False) -> int:
    """Go once over the spec's rows. Returns how many jobs were added.

    Ends early where the backlog would grow past its bound: the next call goes on there.
    ``deep`` reads every text too, and finds what was written past the triggers.
    """
    enqueued = 0
    sweeps = [Lap.Sweep.MISSING, Lap.Sweep.ORPHANED] + ([Lap.Sweep.STALE] if deep else [])
    for sweep in sweeps:
        while True:
            page = reconcile_page(spec, sweep, using=using)
            enqueued += page.enqueued if page else 0
            if page is None or page.is_last:
                break
    if enqueued:
        logger.info("Found %d gaps of %s", enqueued, spec.key)
    return enqueued


def reconcile_page(spec: Spec, sweep: str, *, using: str) -> Page | None:
    """Do the next page of a lap. None: another worker is at it, or the backlog is full."""
    live = spaces.live(spec, using=using)
    room = MAX_BACKLOG - backlog(spec, using=using)
    if not live or room <= 0:
        return None
    Lap.objects.using(using).get_or_create(spec=spec.key, sweep=sweep)
    with transaction.atomic(using=using):
        laps = Lap.objects.using(using).select_for_update(skip_locked=True)
        lap = laps.filter(spec=spec.key, sweep=sweep).first()
        if lap is None:
            return None
        after = None if lap.cursor is None else spec.parse_pk(lap.cursor)
        units, end = _look(spec, sweep, live, after, size=min(PAGE_ROWS, room), using=using)
        enqueued = jobs.enqueue(
            spec.key,
            units,
            kind=Job.Kind.RECONCILER,
            priority=spec.priority,
            using=using,
        )
        if lap.cursor is None:
            lap.started_at = Now()
        lap.cursor = None if end is None else str(end)
        lap.finished_at = Now() if end is None else None
        lap.save(using=using)
    return Page(enqueued, end is None)


def backlog(spec: Spec, *, using: str) -> int:
    """Return how many of the reconciler's jobs are waiting, counted up to the bound."""
    waiting = Job.objects.using(using).filter(
        spec=spec.key,
        status=Job.Status.PENDING,
        priority=jobs.LANES[Job.Kind.RECONCILER] + spec.priority,
    )
    return waiting.order_by()[:MAX_BACKLOG].count()


def has_open_lap(spec: Spec, *, using: str) -> bool:
    """Tell whether a lap for missing or orphaned vectors is in the middle of the table."""
    laps = Lap.objects.using(using).filter(spec=spec.key, cursor__isnull=False)
    return laps.exclude(sweep=Lap.Sweep.STALE).exists()


def _look(
    spec: Spec, sweep: str, live: list[Space], after: Any, *, size: int, using: str
) -> tuple[list[str], Any]:
    """Return the gaps in the page that begins after a key, and the page's last key."""
    by_source = sweep == Lap.Sweep.ORPHANED
    model, key = (spec.embedding_model, "source_id") if by_source else (spec.model, "pk")
    end = gaps.page_end(model, key, after, size=size, using=using)
    page = Q() if after is None else Q(**{f"{key}__gt": after})
    if end is not None:
        page &= Q(**{f"{key}__lte": end})
    if by_source:
        return list(gaps.orphaned(spec, page, using=using)), end
    if sweep == Lap.Sweep.STALE:
        return gaps.stale(spec, live, page, using=using), end
    return list(gaps.missing(spec, live, page, using=using)), end
