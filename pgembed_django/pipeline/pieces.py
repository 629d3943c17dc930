"""Which units are stored together, where somebody keeps some of them from it."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from pgembed_django import database
from pgembed_django.pipeline.units import Unit
from pgembed_django.specs import Spec

MAX_BUSY = 10
"""After so many waits for a spec the rest of its units is left to the next round."""


class Pieces:
    """Some units at a time. What was busy comes again in halves, once all others had their turn.

    Somebody may have a row of theirs, or a whole table for hours: the other units, and those of
    other specs, do not wait for as long as there are units that cannot be stored.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self._rest = deque(units)
        self._again: deque[list[Unit]] = deque()
        self._busy: Counter[Spec] = Counter()

    @property
    def wait(self) -> str:
        """How long to wait for locks: briefly, once there was a wait in vain."""
        return database.BRIEFLY if self._busy else database.SHORTLY

    def take(self, size: int) -> Sequence[Unit]:
        """Return which units come next, up to ``size`` new ones. None are left: nothing."""
        if self._rest:
            return [self._rest.popleft() for _ in range(min(size, len(self._rest)))]
        return self._again.popleft() if self._again else ()

    def part(self, busy: Sequence[Unit]) -> None:
        """Take those apart that could not be stored together."""
        by_spec: defaultdict[Spec, list[Unit]] = defaultdict(list)
        for unit in busy:
            by_spec[unit.spec].append(unit)
        if len(by_spec) > 1:
            self._again += by_spec.values()
            return
        [(spec, units)] = by_spec.items()
        self._busy[spec] += 1
        middle = len(units) // 2
        if middle:
            self._again += [units[:middle], units[middle:]]
        if self._busy[spec] >= MAX_BUSY:
            self._rest = deque(unit for unit in self._rest if unit.spec is not spec)
            self._again = deque(units for units in self._again if units[0].spec is not spec)
