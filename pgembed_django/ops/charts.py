"""Read roll-ups: of the last hours for charts, of the last minutes for the present rate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models.functions import Now

from pgembed_django.models import Rollup
from pgembed_django.queue import rollups


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Counts of units for the ``seconds`` from ``at`` on."""

    at: datetime
    seconds: int
    completed: int = 0
    failed: int = 0
    p50_seconds: float | None = None
    p99_seconds: float | None = None
    """p50 and p99 of the time from write to vector. None: no write was completed."""


def series(
    *, using: str, specs: Sequence[str] | None = None, hours: int = 1, now: datetime
) -> list[Point]:
    """Return a point for each minute of one hour, or each quarter of an hour of several hours.

    Oldest first, without gaps, summed over all these specs, in one query. ``now`` is the
    database's time: ``Overview.at``.
    """
    seconds = (Rollup.Width.MINUTE if hours <= 1 else Rollup.Width.QUARTER).value
    end = datetime.fromtimestamp(now.timestamp() // seconds * seconds, UTC)
    start = end - timedelta(hours=hours)
    # Compare timestamps: with USE_TZ off the rows' times are naive, and never equal an aware one.
    found = defaultdict(list)
    for row in _rows(using, specs, seconds, start):
        found[row.starts_at.timestamp()].append(row)
    times = [start + timedelta(seconds=seconds * n) for n in range(1, hours * 3600 // seconds + 1)]
    return [_point(at, seconds, found[at.timestamp()]) for at in times]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """What was completed for one spec in the last ``RECENT_MINUTES``.

    ``waits`` counts writes by their time from write to vector, in the bounds of ``rollups``.
    """

    units_per_second: float = 0.0
    completed: int = 0
    waits: tuple[int, ...] = ()


RECENT_MINUTES = 5


def recent(*, using: str, now: datetime) -> dict[str, Recent]:
    """Return what was completed in the last minutes, by spec, in one query."""
    minute = datetime.fromtimestamp(now.timestamp() // 60 * 60, UTC)
    start = minute - timedelta(minutes=RECENT_MINUTES)
    by_spec = defaultdict(list)
    for row in _rows(using, None, Rollup.Width.MINUTE, start):
        by_spec[row.spec].append(row)
    found = {}
    for spec, rows in by_spec.items():
        # Count from the first minute that has a roll-up: work that has just begun is not slow.
        elapsed = now.timestamp() - min(row.starts_at.timestamp() for row in rows)
        completed = sum(row.completed for row in rows)
        found[spec] = Recent(
            units_per_second=completed / max(elapsed, 1.0),
            completed=completed,
            waits=tuple(rollups.merged(row.waits for row in rows)),
        )
    return found


def _rows(using: str, specs: Sequence[str] | None, seconds: int, start: datetime) -> list[Rollup]:
    rows = Rollup.objects.using(using).filter(
        seconds=seconds, starts_at__gte=start, starts_at__lte=Now()
    )
    if specs is not None:
        rows = rows.filter(spec__in=specs)
    return list(rows)


def _point(at: datetime, seconds: int, rows: Sequence[Rollup]) -> Point:
    waits = rollups.merged(row.waits for row in rows)
    return Point(
        at=at,
        seconds=seconds,
        completed=sum(row.completed for row in rows),
        failed=sum(row.failed for row in rows),
        p50_seconds=rollups.quantile(waits, 0.5),
        p99_seconds=rollups.quantile(waits, 0.99),
    )
