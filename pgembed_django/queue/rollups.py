"""Keep sums per spec and minute, and read them for charts and rates.

Nothing else writes their table. Each worker counts in memory, and adds its counts every few
seconds, in one statement. If it is killed, the counts since then are lost, which charts can
tolerate.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.db.models.functions import Now

from pgembed_django import database
from pgembed_django.models.job import Ending
from pgembed_django.models.rollup import Rollup

FLUSH_SECONDS = 5.0
"""How often a worker adds its counts to the table."""

BOUNDS = tuple(0.005 * 2 ** (n / 2) for n in range(48))
"""The histogram's upper bounds in seconds, 5 ms to 16 hours. One more bucket has no bound."""

RECENT_MINUTES = 5
"""How far back the present rate looks."""

KEPT = {Rollup.Width.MINUTE.value: 2 * 3600, Rollup.Width.QUARTER.value: 2 * 86_400}
"""How long to keep the sums of each width, in seconds: two hours, and two days."""

# Rows are written in key order, as by every writer of several rows: so there are no deadlocks.
ADD = """
    INSERT INTO pgembed_rollup AS sums (
        spec, seconds, starts_at, completed, failed, waits
    )
    SELECT
        spec,
        width.seconds,
        date_bin(width.seconds * interval '1 second', statement_timestamp(), 'epoch'),
        completed,
        failed,
        string_to_array(waits, ',')::int[]
    FROM unnest(
        %(specs)s::text[],
        %(completed)s::int[],
        %(failed)s::int[],
        -- As text, because unnest would flatten arrays of arrays.
        %(waits)s::text[]
    ) AS counted(spec, completed, failed, waits)
    CROSS JOIN unnest(%(widths)s::int[]) AS width(seconds)
    ORDER BY width.seconds, spec
    ON CONFLICT (seconds, spec, starts_at) DO UPDATE SET
        completed = sums.completed + excluded.completed,
        failed = sums.failed + excluded.failed,
        waits = ARRAY(
            SELECT COALESCE(old, 0) + COALESCE(new, 0)
            FROM unnest(sums.waits, excluded.waits) WITH ORDINALITY AS wait(old, new, position)
            ORDER BY position
        )
"""

PRUNE = """
    DELETE FROM pgembed_rollup
    USING unnest(%(widths)s::int[], %(kept)s::int[]) AS width(seconds, kept)
    WHERE pgembed_rollup.seconds = width.seconds
      AND starts_at < statement_timestamp() - width.kept * interval '1 second'
"""


@dataclass(slots=True)
class Sums:
    """Counts of one spec's units. ``waits``: a histogram of how long writes waited for vectors."""

    completed: int = 0
    failed: int = 0
    waits: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))


class Tally:
    """Counts in memory until ``flush`` is called. Not thread-safe."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, Sums] = defaultdict(Sums)

    def completed(self, spec: str, *, waited: float | None) -> None:
        """Count a completed unit, and for a write, how long its vectors took."""
        sums = self._sums[spec]
        sums.completed += 1
        if waited is not None:
            sums.waits[bisect.bisect_left(BOUNDS, waited)] += 1

    def ended(self, spec: str, ending: Ending) -> None:
        """Count the end of an attempt or a crash, if the job has failed with it."""
        if ending is Ending.FAILED:
            self._sums[spec].failed += 1

    def flush(self, *, using: str) -> None:
        """Add the counts to the current sums in the table, by the database's clock."""
        if not self._sums:
            return
        specs = sorted(self._sums)
        sums = [self._sums[spec] for spec in specs]
        database.execute(
            using,
            ADD,
            specs=specs,
            completed=[one.completed for one in sums],
            failed=[one.failed for one in sums],
            waits=[",".join(map(str, one.waits)) for one in sums],
            widths=list(KEPT),
        )
        self._sums.clear()


def prune(*, using: str) -> int:
    """Delete sums that are too old for any chart."""
    return database.execute(using, PRUNE, widths=list(KEPT), kept=list(KEPT.values()))


def forget(spec: str, *, using: str) -> None:
    """Delete the sums of a spec that is gone."""
    Rollup.objects.using(using).filter(spec=spec).delete()


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

    ``waits`` counts writes by their time from write to vector, in the bounds of ``BOUNDS``.
    """

    units_per_second: float = 0.0
    completed: int = 0
    waits: tuple[int, ...] = ()


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
            waits=tuple(merged(row.waits for row in rows)),
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
    waits = merged(row.waits for row in rows)
    return Point(
        at=at,
        seconds=seconds,
        completed=sum(row.completed for row in rows),
        failed=sum(row.failed for row in rows),
        p50_seconds=quantile(waits, 0.5),
        p99_seconds=quantile(waits, 0.99),
    )


def merged(histograms: Iterable[Sequence[int]]) -> list[int]:
    """Return the sum of several histograms of waits."""
    total = [0] * (len(BOUNDS) + 1)
    for histogram in histograms:
        for position, count in enumerate(histogram[: len(total)]):
            total[position] += count
    return total


def quantile(waits: Sequence[int], share: float) -> float | None:
    """Return roughly within how many seconds this share of the writes had their vectors.

    The error is at most a fifth. None: nothing was counted.
    """
    wanted = share * sum(waits)
    if not wanted:
        return None
    below = 0
    for position, count in enumerate(waits):
        if count and below + count >= wanted:
            lower = BOUNDS[position - 1] if position else 0.0
            upper = BOUNDS[min(position, len(BOUNDS) - 1)]
            return lower + (upper - lower) * (wanted - below) / count
        below += count
    return BOUNDS[-1]
