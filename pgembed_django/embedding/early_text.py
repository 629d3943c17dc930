"""Store a unit's text before its vectors if those are late: full-text search must not wait."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, takewhile

from pgembed_django.embedding.holding import Units
from pgembed_django.embedding.locked import Locked
from pgembed_django.embedding.staging import Staging
from pgembed_django.embedding.units import Unit

LATE_SECONDS = 0.1
"""If a unit's vectors take longer than this, its text is stored first."""

MAX_LATE_SECONDS = 1.0
"""The longest wait while answers keep coming: its own may be next, and text that is stored early
is written twice."""


class EarlyText:
    """Watches how long units wait for their vectors, and stores the text of late ones."""

    def __init__(self, *, holding: Units, staging: Staging, clock: Callable[[], float]) -> None:
        self.holding = holding
        self._staging = staging
        self._clock = clock
        self._answered_at = float("-inf")
        self._locked = Locked(clock=clock)

    def answered(self) -> None:
        """Note that vectors have come and were handled."""
        self._answered_at = self._clock()

    def step(self) -> None:
        """Store the text of units that are late."""
        now = self._clock()
        waiting = self.holding.without_text.values()
        late = takewhile(lambda unit: self._due_at(unit) <= now, waiting)
        units = [unit for unit in late if unit.spec not in self._locked]
        if units:
            self._locked.add(self._staging.store_text(units))

    def due_seconds(self) -> float | None:
        """Return in how many seconds the next unit's text is due."""
        waiting = iter(self.holding.without_text.values())
        # The first is the oldest. Only if a table is locked may another be due before it.
        first = waiting if self._locked else islice(waiting, 1)
        due = min(map(self._tried_at, first), default=None)
        return None if due is None else due - self._clock()

    def _tried_at(self, unit: Unit) -> float:
        return max(self._due_at(unit), self._locked.until(unit.spec))

    def _due_at(self, unit: Unit) -> float:
        flows_until = self._answered_at + LATE_SECONDS
        latest = unit.started + MAX_LATE_SECONDS
        return max(unit.started + LATE_SECONDS, min(flows_until, latest))
