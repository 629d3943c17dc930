"""Fill spaces: find their gaps, build their indexes, and switch to them when they are full.

A look at a space is cheap enough for every second. It first checks the row that lacked its vectors
at the last look, then the end of the table, which is filled last. The whole space is only read
when it may be full, and by one worker at a time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Q
from django.db.models.functions import Now

from pgembed_django import database, events, spaces
from pgembed_django.models import Job, Lap, Space
from pgembed_django.models.job import OPEN_FAILURE
from pgembed_django.spaces import gaps, indexes, laps, reconcile
from pgembed_django.specs import Spec

FIRST_LAP_SECONDS = 5.0
"""How soon a second lap over the rows may follow the first. Each wait is twice the one before."""

FIRST_FILL = timedelta(minutes=15)
"""How long gaps in an active space may put off the building of its indexes."""

INDEXED_SECONDS = 20.0
"""How long to wait before looking again at an active space that needs no index."""

HELD_UP_SECONDS = 24 * 3600.0
"""How long the same failures hold a space up unseen: the table may have grown, and they be few."""

RESTS = 10
"""After a look, wait this many times as long as it took."""


@dataclass(slots=True)
class Seen:
    """What the last looks at a space found, and when the next ones are due.

    ``gap``: the key of a row that lacked vectors, or None. ``held_up_by``: how many open failures
    there were when too many rows had failed, else 0. Times are by the monotonic clock.
    """

    gap: Any = None
    look_at: float = float("-inf")
    index_at: float = float("-inf")
    lap_at: float = float("-inf")
    lap_seconds: float = FIRST_LAP_SECONDS
    held_up_by: int = 0
    held_up_until: float = float("-inf")


class Filling:
    """Watches the spaces that are being filled, and remembers what one worker has seen of them."""

    def __init__(
        self,
        *,
        using: str,
        reconcile_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.using = using
        self.reconcile_seconds = reconcile_seconds
        self._clock = clock
        self._seen: defaultdict[int, Seen] = defaultdict(Seen)

    def look(self, spec: Spec, space: Space) -> int:
        """Switch to the space if it is full and indexed, or else enqueue its gaps.

        Returns how many jobs were added.
        """
        seen = self._seen[space.pk]
        if self._clock() < seen.look_at:
            return 0
        is_held_up = seen.held_up_by and self._clock() < seen.held_up_until
        if is_held_up and seen.held_up_by == self._failures(spec):
            return 0
        with spaces.turn(space, using=self.using) as is_ours:
            if not is_ours:
                return 0
            try:
                if self._is_full(spec, space, seen):
                    self._switch(spec, space, seen)
                    return 0
                return self._find_more(spec, space, seen)
            except database.Busy:
                return 0  # a writer has locked the whole table

    def index(self, spec: Spec, space: Space) -> None:
        """Build the indexes of the active space.

        Wait until its first fill is over, because rows that are stored during a build make it take
        many times as long. But a fill may take days, so wait at most for ``FIRST_FILL``.
        """
        seen = self._seen[space.pk]
        if self._clock() < seen.index_at:
            return
        is_new = Q(pk=space.pk, activated_at__gt=Now() - FIRST_FILL)
        if (
            not Space.objects.using(self.using).filter(is_new).exists()
            or indexes.is_complete(spec, space, using=self.using)
            or not spaces.has_gap(spec, space, using=self.using)
        ):
            started = self._clock()
            if not indexes.build(spec, space, using=self.using):
                # Nothing was built. Rest for longer than the look took: until there are enough rows
                # for an index, each look counts them.
                ended = self._clock()
                seen.index_at = ended + max(INDEXED_SECONDS, RESTS * (ended - started))

    def look_at_once(self) -> None:
        """Make the next look due now, however long the last one took."""
        for seen in self._seen.values():
            seen.look_at = seen.index_at = float("-inf")

    def _is_full(self, spec: Spec, space: Space, seen: Seen) -> bool:
        if seen.gap is not None:
            same = Q(pk=seen.gap)
            if spaces.last_gap(spec, space, within=same, using=self.using) is not None:
                return False
        started = self._clock()
        seen.gap = spaces.last_gap(spec, space, using=self.using)
        ended = self._clock()
        seen.look_at = ended + RESTS * (ended - started)
        return seen.gap is None

    def _switch(self, spec: Spec, space: Space, seen: Seen) -> None:
        if self._is_held_up(spec, space, seen):
            return
        # Built last, because inserts are many times faster without indexes. As that takes time,
        # there may be gaps again.
        if indexes.build(spec, space, using=self.using) and (
            not self._is_full(spec, space, seen) or self._is_held_up(spec, space, seen)
        ):
            return
        if not indexes.is_complete(spec, space, using=self.using):
            return
        with spaces.last_look(space, using=self.using) as is_ours:
            is_full = is_ours and self._is_full(spec, space, seen)
            is_switched = is_full and spaces.activate(space, using=self.using)
        if is_switched:
            events.tell(events.SPACE_ACTIVATED, spec=spec.key, space=str(space))

    def _is_held_up(self, spec: Spec, space: Space, seen: Seen) -> bool:
        """Return whether a switch would lose many rows that have failed. Tell once.

        The new provider may be set up wrongly, and the former vectors are pruned some time after.
        """
        started = self._clock()
        failures = self._failures(spec)
        lost = spaces.lost_by_switching(spec, space, using=self.using) if failures else 0
        seen.look_at += RESTS * (self._clock() - started)
        if lost and not seen.held_up_by:
            events.tell(
                events.SPACE_HELD_UP,
                spec=spec.key,
                space=str(space),
                number=space.pk,
                count=lost,
            )
        seen.held_up_by = failures if lost else 0
        seen.held_up_until = self._clock() + HELD_UP_SECONDS
        return lost > 0

    def _failures(self, spec: Spec) -> int:
        return Job.objects.using(self.using).filter(OPEN_FAILURE, spec=spec.key).count()

    def _find_more(self, spec: Spec, space: Space, seen: Seen) -> int:
        """Go over the rows now, if no job covers the gap. Return how many jobs were added.

        A gap without a job means that the last lap passed the row too early, or that a lap is under
        way. This continues such a lap only if none of the jobs that it has added is waiting.
        """
        if self.reconcile_seconds <= 0:
            return 0
        is_under_way = Lap.Sweep.MISSING in laps.open_sweeps(spec, using=self.using)
        if is_under_way and reconcile.backlog(spec, using=self.using):
            return 0
        if not is_under_way and self._clock() < seen.lap_at:
            return 0
        with database.giving_way(self.using):
            is_gap = gaps.missing(spec, [space], Q(pk=seen.gap), using=self.using)
        if not is_gap:
            return 0
        if not is_under_way:
            seen.lap_at = self._clock() + seen.lap_seconds
            seen.lap_seconds = min(seen.lap_seconds * 2, self.reconcile_seconds)
        return reconcile.reconcile_once(spec, using=self.using, sweeps=[Lap.Sweep.MISSING])
