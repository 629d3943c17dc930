"""The specs whose tables were locked at the last try: they are left alone for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pgembed_django.specs import Spec

LOCKED_SECONDS = 1.0
"""How soon what can be done later is tried again where somebody has locked its table."""


class Locked:
    """Knows until when. The other specs go on."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[Spec, float] = {}

    def __contains__(self, spec: Spec) -> bool:
        return self.until(spec) > self._clock()

    def __bool__(self) -> bool:
        return bool(self._until)

    def until(self, spec: Spec) -> float:
        """Return when a spec is to be tried again, by the clock. Long ago: at once."""
        return self._until.get(spec, float("-inf"))

    def add(self, specs: Iterable[Spec]) -> None:
        """Leave specs alone from now on. Those whose time is over are forgotten."""
        now = self._clock()
        self._until = {spec: until for spec, until in self._until.items() if until > now}
        self._until |= dict.fromkeys(specs, now + LOCKED_SECONDS)
