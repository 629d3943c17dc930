"""Time a claim, a heartbeat, a completion and a page of the reconciler."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db import connections, transaction

from benchmarks.compare import Figures
from benchmarks.scale.worlds import spec
from pgembed_django.models import ScanCursor
from pgembed_django.queue import jobs
from pgembed_django.spaces import reconcile

UNITS, TIMES = 100, 5
FIGURES = tuple(
    f"{verb} of {UNITS}" if verb != "reconcile" else f"reconcile {reconcile.PAGE_ROWS:,} rows"
    for verb in ("claim", "heartbeat", "complete", "reconcile")
)
KEEP_SECONDS = 3600.0

# Adds as many jobs as were claimed, behind the others, so that all runs find the same number.
AGAIN = """
    INSERT INTO pgembed_job (spec, source_pk, run_at)
    SELECT spec, source_pk, now() - interval '1 s'
    FROM unnest(%s::text[]) AS source_pk, (SELECT %s::text) AS wanted(spec)
"""


def of(using: str) -> Callable[[], Figures]:
    """Return a function that measures one world."""

    def measure() -> Figures:
        """Return the mean milliseconds of each step, after a warm-up."""
        taken = [_steps(using) for _ in range(TIMES + 1)][1:]
        return {
            figure: 1000 * sum(seconds) / TIMES
            for figure, seconds in zip(FIGURES, zip(*taken, strict=True), strict=True)
        }

    return measure


def _steps(using: str) -> tuple[float, float, float, float]:
    claimed: list[Any] = []

    def claim() -> None:
        claimed.extend(jobs.claim([spec().key], limit=UNITS, lease=jobs.Lease(1, 600), using=using))

    def complete() -> None:
        with transaction.atomic(using=using):
            held = jobs.hold(claimed, using=using)
            jobs.complete(dict.fromkeys(held.ours, 1), keep_seconds=KEEP_SECONDS, using=using)

    def reconcile_page() -> None:
        page = reconcile.reconcile_page(spec(), ScanCursor.Scan.MISSING, using=using)
        assert page is not None
        assert page.enqueued == 0

    seconds = (
        _timed(claim),
        _timed(lambda: jobs.heartbeat(claimed, lease_seconds=600, using=using)),
        _timed(complete),
        _timed(reconcile_page),
    )
    assert len(claimed) == UNITS
    with connections[using].cursor() as cursor:
        cursor.execute(AGAIN, [[one.source_pk for one in claimed], spec().key])
    return seconds


def _timed(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started
