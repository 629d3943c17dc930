"""How many units to take at once, so that a step takes about as long as it may."""

from __future__ import annotations

FIRST = 128
MOST = 1024
SECONDS = 0.1


class Portion:
    """A number of units that follows from how long the last ones took."""

    def __init__(self) -> None:
        self.size = FIRST
        self._was_canceled = False

    def wanted(self, least: int) -> int:
        """Return how many to take next: at least ``least``, unless that many took too long."""
        return self.size if self._was_canceled else max(self.size, least)

    def adapt(self, units: int, *, seconds: float) -> None:
        """Learn from how long these took. Next come at most twice as many, and at least one."""
        if units >= self.size or seconds > SECONDS:
            in_time = int(units * SECONDS / max(seconds, 1e-6))
            self.size = max(1, min(in_time, 2 * self.size, MOST))
            self._was_canceled &= seconds > SECONDS

    def halve(self, units: int) -> None:
        """Take half as many next: a time-out canceled these."""
        self.size = max(1, units // 2)
        self._was_canceled = True
