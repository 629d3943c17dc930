"""Which units to store in one transaction while somebody else has some of their rows locked."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from pgembed_django import database
from pgembed_django.pipeline.units import Unit, by_spec
from pgembed_django.specs import Spec

MAX_BUSY = 10
"""After this many futile waits, the rest of a spec's units waits for the next round."""


class Pieces:
    """Some units at a time. Busy ones come again in halves, after all others.

    A writer may hold one of their rows, or a whole table for hours. Waits are bounded per spec,
    so that all other units are stored meanwhile.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self._rest = deque(units)
        self._again: deque[list[Unit]] = deque()
        self._busy: Counter[Spec] = Counter()

    @property
    def wait(self) -> str:
        """How long to wait for locks: only briefly after a futile wait."""
        return database.BRIEFLY if self._busy else database.SHORTLY

    def take(self, size: int) -> Sequence[Unit]:
        """Return the next units, up to ``size`` new ones. Empty: none are left."""
        if self._rest:
            return [self._rest.popleft() for _ in range(min(size, len(self._rest)))]
        return self._again.popleft() if self._again else ()

    def split(self, busy: Sequence[Unit]) -> None:
        """Split units that could not be stored together: by spec, or in halves."""
        of_specs = by_spec(busy)
        if len(of_specs) > 1:
            self._again += of_specs.values()
            return
        [(spec, units)] = of_specs.items()
        self._busy[spec] += 1
        middle = len(units) // 2
        if middle:
            self._again += [units[:middle], units[middle:]]
        if self._busy[spec] >= MAX_BUSY:
            self._rest = deque(unit for unit in self._rest if unit.spec is not spec)
            self._again = deque(units for units in self._again if units[0].spec is not spec)
