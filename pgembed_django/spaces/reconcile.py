"""Scan the tables for gaps: rows whose stored vectors do not match them. Enqueue these.

Gaps have a lower priority than writes. A scan goes over one table page by page, in key order.
Workers share its cursor without a leader: each takes the next page. One short transaction finds the
gaps of a page and enqueues them, so that no TRUNCATE can come in between. Chunks and jobs are
looked up by index, so a page costs the same however large the tables are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.db import DatabaseError
from django.db.models import Model, OuterRef, Q, QuerySet, TextField
from django.db.models.functions import Cast, Now

from pgembed_django import events, sources, spaces
from pgembed_django.core import database, faults
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import Job, ScanCursor, Space
from pgembed_django.models.job import OPEN_FAILURE, PENDING, READY, RUNNING, UNSETTLED
from pgembed_django.queue import jobs
from pgembed_django.spaces import stored, words
from pgembed_django.spaces.coverage import LookedUp, covering_chunk, jobs_of_row

Scan = ScanCursor.Scan
CHEAP_SCANS = (Scan.MISSING, Scan.ORPHANED)
ALL_SCANS = (*CHEAP_SCANS, Scan.STALE)
COMPARING = (Scan.STALE, Scan.WORDS)
"""The scans that begin anew when what they compare the rows with was declared otherwise."""

BEGUN = ""
"""The cursor of a scan that is under way, and before the first row."""

PAGE_ROWS = 1000
MAX_BACKLOG = 10_000

TEXTS_SECONDS = 1.0
"""How long one transaction makes texts at most: TRUNCATE and ALTER TABLE wait for its end."""

PARKED = UNSETTLED & Q(run_at__gt=Now())

_fewer_rows: dict[tuple[str, str, str], int] = {}
"""(spec key, scan, database) -> page size, after a page failed. Zero: skip a single bad row."""


class Page(NamedTuple):
    """The result of one page: jobs added, and whether it was the scan's last page."""

    enqueued: int
    is_last: bool


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


def recipe_of(spec: Spec, scan: str) -> str:
    """Return what a scan of ``COMPARING`` compares the rows with."""
    return spec.words_recipe if scan == Scan.WORDS else spec.recipe


def reconcile_once(
    spec: Spec,
    *,
    using: str,
    scans: Sequence[str] = CHEAP_SCANS,
    quiet_seconds: float = math.inf,
) -> int:
    """Go over the spec's rows once. Return how many jobs were added.

    Stops early when the backlog is full, and after ``quiet_seconds`` on pages without a gap, but
    does at least one page of each scan. The next call goes on there. ``ALL_SCANS`` also reads
    every text, and so finds what was written past the triggers.
    """
    enqueued = 0
    quiet = 0.0
    for scan in scans:
        started = time.monotonic()
        while page := reconcile_page(spec, scan, using=using):
            enqueued += page.enqueued
            quiet += 0 if page.enqueued else time.monotonic() - started
            if page.is_last or (not page.enqueued and quiet >= quiet_seconds):
                break
            started = time.monotonic()
    if enqueued:
        events.tell(events.GAPS_FOUND, spec=spec.key, count=enqueued)
    return enqueued


def reconcile_page(spec: Spec, scan: str, *, using: str) -> Page | None:
    """Do the next page of a scan.

    None: the scan, the table or jobs that it needs are locked, the backlog is full, or no space is
    live.
    Raises the database's error if the page timed out or met a damaged value. The next call then
    takes half as many rows.
    """
    live = spaces.live(spec, using=using)
    room = _room(spec, using=using)
    if not live or not (room or scan == Scan.WORDS):
        return None
    begin(spec, scan, using=using)
    key = spec.key, scan, using
    rows = _fewer_rows.get(key, PAGE_ROWS)
    if scan != Scan.WORDS:
        rows = min(rows, room)
    try:
        page = _next_page(spec, scan, live, rows=rows, using=using)
    except database.Busy:
        return None  # a TRUNCATE or ALTER TABLE has locked the whole table
    except DatabaseError as error:
        if faults.may_pass(error):
            _fewer_rows[key] = rows // 2
        raise
    if key in _fewer_rows:
        _fewer_rows[key] = min(2 * rows or 1, PAGE_ROWS)
    return page


def _next_page(
    spec: Spec, scan: str, live: Sequence[Space], *, rows: int, using: str
) -> Page | None:
    with database.giving_way(using):
        cursors = ScanCursor.objects.using(using)
        free = cursors.select_for_update(skip_locked=True)
        cursor = free.filter(spec=spec.key, scan=scan).first()
        if cursor is None:
            return None
        if scan in COMPARING and cursor.recipe != recipe_of(spec, scan):
            # The declaration has changed: begin a scan that compares every row with it.
            cursor.recipe, cursor.cursor = recipe_of(spec, scan), None
        if scan == Scan.WORDS:
            found = _look_at_words(spec, live, cursor.cursor, rows=rows, using=using)
            if found is None:
                return None
            units, end = found
        else:
            units, end = _find_gaps(spec, scan, live, cursor.cursor, rows=rows, using=using)
        enqueued, left = jobs.enqueue_unlocked(
            spec.key, units, kind=Job.Kind.RECONCILER, priority=spec.priority, using=using
        )
        if left and not cursor.finished_recipe:
            # No later scan may follow one that was begun anew: it stays at the page until others
            # have unlocked all jobs there, which may be rolled back.
            return Page(enqueued, is_last=False) if enqueued else None
        state: dict[str, Any] = {"recipe": cursor.recipe}
        if end is None:
            state |= {"cursor": None, "finished_at": Now(), "finished_recipe": cursor.recipe}
        else:
            state |= {"cursor": str(end), "finished_at": None}
        # update() sends no signals: an error in a receiver must not end the scan.
        cursors.filter(pk=cursor.pk).update(**state)
    return Page(enqueued, is_last=end is None)


def _find_gaps(
    spec: Spec, scan: str, live: Sequence[Space], cursor: str | None, *, rows: int, using: str
) -> tuple[Sequence[str], Any]:
    """Return the gaps of the next page, and its last key. No key: it is the last page."""
    after = spec.parse_cursor(cursor)
    end = _page_end(spec, scan, after, rows=max(rows, 1), using=using)
    if not rows:
        return (), end
    key = "source_id" if scan == Scan.ORPHANED else "pk"
    page = Q() if after is None else Q(**{f"{key}__gt": after})
    page &= Q() if end is None else Q(**{f"{key}__lte": end})
    if scan == Scan.STALE:
        units, cut_at = stale(spec, live, page, using=using)
        return units, end if cut_at is None else cut_at
    if scan == Scan.ORPHANED:
        return list(orphaned(spec, page, using=using)), end
    return missing(spec, live, page, using=using), end


def _look_at_words(
    spec: Spec, live: Sequence[Space], cursor: str | None, *, rows: int, using: str
) -> tuple[Sequence[str], int | None] | None:
    """Mend some words of the next page. Return units whose jobs are to do it, and its last id.

    None: it has to wait for jobs. The scan ends when they have mended the last texts.
    """
    after = int(cursor or 0)
    end, without_passages = words.mend_page(spec, live, after=after, rows=rows, using=using)
    units = jobs.free(spec.key, list(without_passages), using=using)
    if units:
        has_room = bool(_room(spec, using=using))
        return (units, after if end is None else end) if has_room else None
    if end is None and spec.store_text is not True and backlog(spec, using=using):
        return None
    return (), end


def _page_end(spec: Spec, scan: str, after: Any, *, rows: int, using: str) -> Any:
    """Return the last key of the page after a key, or None on the last page.

    The texts of a page that compares them fit in one read.
    """
    key = "source_id" if scan == Scan.ORPHANED else "pk"
    walked = spec.all_rows(using=using)
    if scan == Scan.ORPHANED:
        walked = spec.embedding_model._base_manager.using(using).all()
    if after is not None:
        walked = walked.filter(**{f"{key}__gt": after})
    if scan == Scan.STALE:
        keys = sources.fitting(spec, walked, most=rows)
        is_cut = len(keys) == rows or (keys and walked.filter(pk__gt=keys[-1]).exists())
        return keys[-1] if is_cut else None
    return next(iter(walked.order_by(key).values_list(key, flat=True)[rows - 1 : rows]), None)


# The gaps of one page of keys


def missing(spec: Spec, live: Sequence[Space], page: Q, *, using: str) -> list[str]:
    """Return rows that lack vectors in a space, have no unfinished job, and are not parked.

    Also returns rows that lack nothing but have an open failure: it may be of a space that is no
    longer live, and only a job settles it.
    """
    fresh = ~Q(LookedUp(jobs_of_row(spec, OPEN_FAILURE)))
    for space in live:
        fresh &= Q(LookedUp(covering_chunk(spec, space)))
    rows = spec.rows(using=using).filter(page).exclude(fresh)
    for status in (PENDING, RUNNING, PARKED):  # each has an index of its own
        rows = rows.exclude(LookedUp(jobs_of_row(spec, status)))
    return list(rows.order_by("pk").values_list(Cast("pk", TextField()), flat=True))


def orphaned(spec: Spec, page: Q, *, using: str) -> QuerySet[Model, str]:
    """Return units with stored chunks whose row is gone or no longer matches the condition."""
    rows = spec.rows(using=using).filter(pk=OuterRef("source_id"))
    return (
        spec.embedding_model._base_manager.using(using)
        .filter(page)
        .exclude(LookedUp(rows))
        .values_list(Cast("source_id", TextField()), flat=True)
        .distinct()
    )


def stale(spec: Spec, live: Sequence[Space], page: Q, *, using: str) -> tuple[list[str], Any]:
    """Return rows whose text differs from the stored digest, or its language. Reads every text.

    The second value is the key after which it stopped early because text methods took too long,
    or None.
    """
    rows = spec.rows(using=using).filter(page).exclude(LookedUp(jobs_of_row(spec, PARKED)))
    # Rows whose text method raises are left out: jobs fail of that when such rows are written.
    texts, end = sources.digests(spec, rows, seconds=TEXTS_SECONDS)
    found = stored.texts(spec, list(texts), [space.pk for space in live], using=using)
    languages = sources.languages(spec, list(texts), using=using)
    return sorted(
        {
            key
            for key, digest, language in found
            if (digest, language) != (texts[key], languages.get(key))
        }
    ), end


# The scans


def under_way(
    specs: Iterable[Spec], *, using: str, only_begun: bool = False
) -> dict[Spec, list[str]]:
    """Return the scans that have to go on without waiting for their next turn.

    These are the scans in the middle of a table, and unless ``only_begun``, ``stale`` and ``words``
    until they have compared all rows with a changed recipe. In one statement, because this runs
    every second.
    """
    by_key = {spec.key: spec for spec in specs}
    may_be_open = Q(cursor__isnull=False)
    if not only_begun:
        may_be_open |= Q(scan__in=COMPARING)
    cursors = ScanCursor.objects.using(using).filter(
        may_be_open, spec__in=by_key, scan__in=(*CHEAP_SCANS, *COMPARING)
    )
    found: dict[Spec, list[str]] = {}
    for key, scan, recipe in cursors.order_by("pk").values_list("spec", "scan", "finished_recipe"):
        spec = by_key[key]
        if scan in CHEAP_SCANS or recipe != recipe_of(spec, scan):
            found.setdefault(spec, []).append(scan)
    return found


def begin(spec: Spec, scan: str, *, using: str) -> None:
    """Ensure that there is a scan. A new one takes what is stored as made by the present recipe."""
    ScanCursor.begin(spec.key, scan, recipe_of(spec, scan), using=using)


def restart(spec: Spec, scan: str, *, using: str) -> None:
    """Begin a new scan with the next page."""
    ScanCursor.objects.using(using).filter(spec=spec.key, scan=scan).update(cursor=None)


def compare_anew(spec: Spec, scans: Sequence[str] = ALL_SCANS, *, using: str) -> None:
    """Begin scans anew after a gap, in which any row may have been written without a job.

    Scans find what is stored by now. A job that is running stores later what it read before, and
    of a failure nothing is stored: their units get another job.

    Raises:
        database.Busy: others have locked a job or a cursor. Nothing was done.
    """
    with database.giving_way(using):
        jobs.enqueue_doubtful(
            spec.key, kind=Job.Kind.RECONCILER, priority=spec.priority, using=using
        )
        begin_anew(spec, scans, using=using)


def begin_anew(spec: Spec, scans: Sequence[str] = ALL_SCANS, *, using: str) -> None:
    """Begin scans anew, to be continued at once: changes of any row may have been missed."""
    for scan in scans:
        begin(spec, scan, using=using)
    cursors = ScanCursor.objects.using(using).filter(spec=spec.key, scan__in=scans)
    cursors.update(cursor=BEGUN, finished_recipe="", finished_at=None)


def refreshing(spec: Spec, *, using: str) -> Refreshing | None:
    """Return how many rows were compared with a changed recipe, or None if all were.

    Counts the whole table, so call it only when a person asks.
    """
    cursor = ScanCursor.objects.using(using).filter(spec=spec.key, scan=Scan.STALE).first()
    if cursor is None or cursor.finished_recipe == spec.recipe:
        return None
    rows = spec.rows(using=using)
    after = spec.parse_cursor(cursor.cursor) if cursor.recipe == spec.recipe else None
    compared = 0 if after is None else rows.filter(pk__lte=after).count()
    return Refreshing(rows.count(), compared, backlog(spec, using=using))


# The jobs that wait


def backlog(spec: Spec, *, using: str, kind: Job.Kind = Job.Kind.RECONCILER) -> int:
    """Return how many jobs of a kind are waiting, counted up to ``MAX_BACKLOG``."""
    waiting = Job.objects.using(using).filter(
        READY, spec=spec.key, priority=kind.priority(spec.priority)
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
