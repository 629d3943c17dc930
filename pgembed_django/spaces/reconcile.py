"""Walk the tables for gaps, and enqueue these with a lower priority than writes.

A lap goes over one table page by page, in key order. Workers share its cursor without a leader:
each takes the next page. One short transaction finds the gaps of a page and enqueues them, so that
no TRUNCATE can come in between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db import DatabaseError
from django.db.models import Q
from django.db.models.functions import Now

from pgembed_django import database, events, faults, spaces
from pgembed_django.models import Job, Lap, Space
from pgembed_django.models.job import READY
from pgembed_django.queue import jobs
from pgembed_django.spaces import gaps, laps
from pgembed_django.specs import Spec

PAGE_ROWS = 1000
MAX_BACKLOG = 10_000

_fewer_rows: dict[tuple[str, str, str], int] = {}
"""(spec key, sweep, database) -> page size, after a page failed. Zero: skip a single bad row."""


class Page(NamedTuple):
    """The result of one page: jobs added, and whether it was the lap's last page."""

    enqueued: int
    is_last: bool
    is_cut: bool
    """Whether the page ended early because its texts took long to make."""


class Found(NamedTuple):
    """The units with a gap on a page."""

    units: Sequence[str]
    cut_at: Any = None
    """The key after which the page ended early. None: it did not."""


class Refreshing(NamedTuple):
    """How far a changed recipe has got: ``compared`` of ``rows`` were compared with it.

    ``waiting`` jobs have yet to embed rows again; they are counted up to ``MAX_BACKLOG``.
    """

    rows: int
    compared: int
    waiting: int

    @property
    def left(self) -> int:
        """How many rows at most have yet to be embedded again."""
        return self.rows - self.compared + self.waiting


def reconcile_once(
    spec: Spec,
    *,
    using: str,
    sweeps: Sequence[str] = laps.CHEAP_SWEEPS,
    quiet_seconds: float = math.inf,
) -> int:
    """Go over the spec's rows once. Return how many jobs were added.

    Stops early when the backlog is full, and after ``quiet_seconds`` on pages without a gap, but
    does at least one page of each sweep. The next call goes on there. ``laps.ALL_SWEEPS`` also
    reads every text, and so finds what was written past the triggers.
    """
    enqueued = 0
    quiet = 0.0
    for sweep in sweeps:
        while True:
            started = time.monotonic()
            page = reconcile_page(spec, sweep, using=using)
            if page is None:
                break
            enqueued += page.enqueued
            quiet += 0 if page.enqueued else time.monotonic() - started
            if page.is_last or (not page.enqueued and quiet >= quiet_seconds):
                break
    if enqueued:
        events.tell(events.GAPS_FOUND, spec=spec.key, count=enqueued)
    return enqueued


def reconcile_page(spec: Spec, sweep: str, *, using: str) -> Page | None:
    """Do the next page of a lap.

    None: the lap or the table is locked, the backlog is full, or no space is live.
    Raises the database's error if the page timed out or met a damaged value. The next call then
    takes half as many rows.
    """
    live = spaces.live(spec, using=using)
    room = _room(spec, using=using)
    if not live or not room:
        return None
    laps.begin(spec, sweep, using=using)
    lap = spec.key, sweep, using
    rows = min(_fewer_rows.get(lap, PAGE_ROWS), room)
    try:
        page = _next_page(spec, sweep, live, rows=max(rows, 1), using=using, is_skipped=not rows)
    except database.Busy:
        return None  # a TRUNCATE or ALTER TABLE has locked the whole table
    except DatabaseError as error:
        if faults.may_pass(error):
            _fewer_rows[lap] = rows // 2
        raise
    if lap in _fewer_rows:
        _fewer_rows[lap] = min(2 * rows or 1, PAGE_ROWS)
    return page


def _next_page(
    spec: Spec,
    sweep: str,
    live: Sequence[Space],
    *,
    rows: int,
    using: str,
    is_skipped: bool = False,
) -> Page | None:
    with database.giving_way(using):
        free = Lap.objects.using(using).select_for_update(skip_locked=True)
        lap = free.filter(spec=spec.key, sweep=sweep).first()
        if lap is None:
            return None
        if sweep == Lap.Sweep.STALE and lap.recipe != spec.recipe:
            # The declaration has changed: begin a lap that compares every row with it.
            lap.recipe, lap.cursor = spec.recipe, None
        after = spec.parse_cursor(lap.cursor)
        page, last_key = _page(spec, sweep, after, rows=rows, using=using)
        found = Found([]) if is_skipped else _gaps(spec, sweep, live, page, using=using)
        enqueued = jobs.enqueue(
            spec.key,
            found.units,
            kind=Job.Kind.RECONCILER,
            priority=spec.priority,
            using=using,
        )
        is_cut = found.cut_at is not None
        end = found.cut_at if is_cut else last_key
        _move(lap, end, using=using)
    return Page(enqueued, is_last=end is None, is_cut=is_cut)


def _move(lap: Lap, end: Any, *, using: str) -> None:
    """Store that a lap has come to a key. None: it has ended."""
    state: dict[str, Any] = {"recipe": lap.recipe}
    if lap.cursor is None:
        state["started_at"] = Now()
    if end is None:
        state |= {"cursor": None, "finished_at": Now(), "finished_recipe": lap.recipe}
    else:
        state |= {"cursor": str(end), "finished_at": None}
    # update() sends no signals: an error in a receiver must not end the lap.
    Lap.objects.using(using).filter(pk=lap.pk).update(**state)


def backlog(spec: Spec, *, using: str, kind: Job.Kind = Job.Kind.RECONCILER) -> int:
    """Return how many jobs of a kind are waiting, counted up to ``MAX_BACKLOG``."""
    waiting = Job.objects.using(using).filter(
        READY,
        spec=spec.key,
        priority=kind.priority(spec.priority),
    )
    return waiting.order_by()[:MAX_BACKLOG].count()


def is_backlog_full(spec: Spec, *, using: str) -> bool:
    """Return whether the backlog has no room for another page."""
    return not _room(spec, using=using)


def _room(spec: Spec, *, using: str) -> int:
    """Return how many jobs may be added. Zero if there is no room for a whole page.

    Otherwise each claim would be followed by a tiny page with as many rows as it took.
    """
    room = MAX_BACKLOG - backlog(spec, using=using)
    return room if room >= min(PAGE_ROWS, MAX_BACKLOG) else 0


def refreshing(spec: Spec, *, using: str) -> Refreshing | None:
    """Return how many rows were compared with a changed recipe, or None if all were.

    Counts the whole table, so call it only when a person asks.
    """
    lap = Lap.objects.using(using).filter(spec=spec.key, sweep=Lap.Sweep.STALE).first()
    if lap is None or lap.finished_recipe == spec.recipe:
        return None
    rows = spec.rows(using=using)
    compared = 0
    after = spec.parse_cursor(lap.cursor)
    if lap.recipe == spec.recipe and after is not None:
        compared = rows.filter(pk__lte=after).count()
    return Refreshing(rows.count(), compared, backlog(spec, using=using))


def _page(spec: Spec, sweep: str, after: Any, *, rows: int, using: str) -> tuple[Q, Any]:
    """Return (filter, last key) of the page after a key. The last key is None on the last page."""
    by_source = sweep == Lap.Sweep.ORPHANED
    key = "source_id" if by_source else "pk"
    if sweep == Lap.Sweep.STALE:
        end = gaps.text_page_end(spec, after, size=rows, using=using)
    else:
        chunks = spec.embedding_model._base_manager.using(using)
        walked = chunks if by_source else spec.all_rows(using=using)
        end = gaps.page_end(walked, key, after, size=rows)
    page = Q() if after is None else Q(**{f"{key}__gt": after})
    if end is not None:
        page &= Q(**{f"{key}__lte": end})
    return page, end


def _gaps(spec: Spec, sweep: str, live: Sequence[Space], page: Q, *, using: str) -> Found:
    if sweep == Lap.Sweep.ORPHANED:
        return Found(list(gaps.orphaned(spec, page, using=using)))
    if sweep == Lap.Sweep.STALE:
        units, cut_at = gaps.stale(spec, live, page, using=using)
        return Found(units, cut_at)
    return Found(gaps.missing(spec, live, page, using=using))
