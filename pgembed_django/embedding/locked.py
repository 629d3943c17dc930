"""The specs whose tables were locked at the last try, left alone for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pgembed_django.specs import Spec

LOCKED_SECONDS = 1.0
"""How soon work that can wait is tried again after its table was found locked."""


class Locked:
    """Knows how long to leave each alone. The other specs go on."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[Spec, float] = {}

    def __contains__(self, spec: Spec) -> bool:
        return self.until(spec) > self._clock()

    def __bool__(self) -> bool:
        return bool(self._until)

    def until(self, spec: Spec) -> float:
        """Return when to try a spec again, by the clock. Long ago: at once."""
        return self._until.get(spec, float("-inf"))

    def add(self, specs: Iterable[Spec]) -> None:
        """Leave specs alone from now on. Forget those whose time is over."""
        now = self._clock()
        self._until = {spec: until for spec, until in self._until.items() if until > now}
        self._until |= dict.fromkeys(specs, now + LOCKED_SECONDS)
