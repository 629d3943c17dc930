"""Keep sums per spec, or queue of tasks, and minute, and read them for charts and rates.

Nothing else writes their table. Each worker counts in memory, and adds its counts every few
seconds, in one statement. If it is killed, the counts since then are lost, which charts can
tolerate.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.db.models.functions import Now

from pgembed_django.core import database
from pgembed_django.models.job import Rollup

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


@dataclass(slots=True, kw_only=True)
class Point:
    """Counts of units for some ``seconds`` from ``at`` on."""

    at: datetime = datetime.min
    seconds: float = 1.0
    completed: int = 0
    failed: int = 0
    waits: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    """A histogram of how long writes waited for their vectors, or due tasks for their start."""

    def add(self, rows: Iterable[Rollup]) -> Point:
        """Add what workers have counted."""
        for row in rows:
            self.completed += row.completed
            self.failed += row.failed
            for bucket, count in enumerate(row.waits[: len(self.waits)]):
                self.waits[bucket] += count
        return self

    @property
    def units_per_second(self) -> float:
        """How many units were completed per second."""
        return self.completed / self.seconds

    def quantile(self, share: float) -> float | None:
        """Return roughly how many seconds this share of those that waited has waited at most.

        The error is at most a fifth. None: none was completed.
        """
        wanted = share * sum(self.waits)
        below = 0
        for bucket, count in enumerate(self.waits):
            if count and below + count >= wanted:
                lower = BOUNDS[bucket - 1] if bucket else 0.0
                upper = BOUNDS[min(bucket, len(BOUNDS) - 1)]
                return lower + (upper - lower) * (wanted - below) / count
            below += count
        return None


class Tally:
    """Counts in memory until ``flush`` is called. Not thread-safe."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, Point] = defaultdict(Point)

    def completed(self, spec: str, *, waited: float | None) -> None:
        """Count a completed unit, and for one that somebody waits for, how long that took."""
        self._sums[spec].completed += 1
        if waited is not None:
            self._sums[spec].waits[bisect.bisect_left(BOUNDS, waited)] += 1

    def failed(self, spec: str) -> None:
        """Count a unit that has failed for good."""
        self._sums[spec].failed += 1

    def flush(self, *, using: str) -> None:
        """Add the counts to the current sums in the table, by the database's clock."""
        if not self._sums:
            return
        sums = [self._sums[spec] for spec in sorted(self._sums)]
        database.execute(
            using,
            ADD,
            specs=sorted(self._sums),
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


def series(*, using: str, hours: int = 1, now: datetime, of_tasks: bool = False) -> list[Point]:
    """Return the sums of each minute of one hour, or each quarter of an hour of several hours.

    Oldest first, without gaps, over all specs, or over all queues of tasks, in one query. ``now``
    is the database's time: ``Overview.at``.
    """
    seconds = (Rollup.Width.MINUTE if hours <= 1 else Rollup.Width.QUARTER).value
    end = datetime.fromtimestamp(now.timestamp() // seconds * seconds, UTC)
    start = end - timedelta(hours=hours)
    # Compare timestamps: with USE_TZ off the rows' times are naive, and never equal an aware one.
    found = defaultdict(list)
    for row in _since(start, seconds, using=using):
        # The key of a spec has a dot, the name of a queue has none.
        if ("." not in row.spec) == of_tasks:
            found[row.starts_at.timestamp()].append(row)
    times = [start + timedelta(seconds=seconds * n) for n in range(1, hours * 3600 // seconds + 1)]
    return [Point(at=at, seconds=seconds).add(found[at.timestamp()]) for at in times]


def recent(*, using: str, now: datetime) -> dict[str, Point]:
    """Return what was completed in the last ``RECENT_MINUTES``, by spec, in one query."""
    minute = datetime.fromtimestamp(now.timestamp() // 60 * 60, UTC)
    by_spec = defaultdict(list)
    for row in _since(minute - timedelta(minutes=RECENT_MINUTES), 60, using=using):
        by_spec[row.spec].append(row)
    found = {}
    for spec, rows in by_spec.items():
        # Count from the first minute that has a roll-up: work that has just begun is not slow.
        elapsed = now.timestamp() - min(row.starts_at.timestamp() for row in rows)
        found[spec] = Point(at=now, seconds=max(elapsed, 1.0)).add(rows)
    return found


def _since(start: datetime, seconds: int, *, using: str) -> list[Rollup]:
    return list(
        Rollup.objects.using(using).filter(
            seconds=seconds, starts_at__gte=start, starts_at__lte=Now()
        )
    )
