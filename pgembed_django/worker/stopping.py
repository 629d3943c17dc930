"""Whether a worker must end, and how soon."""

from __future__ import annotations

import time


class Stopping:
    """Knows how often a worker was asked to stop, and since when."""

    def __init__(self, *, grace_seconds: float) -> None:
        self.asked = 0
        """One: stop after what is in flight. Two or more: at once."""
        self.has_begun = False
        self._grace_seconds = grace_seconds
        self._since = float("inf")

    @property
    def is_overdue(self) -> bool:
        """Whether the grace period is over, or was cut short by a second request."""
        return self.asked > 1 or self.grace_left() <= 0

    def ask(self) -> None:
        """Ask the worker to stop. The first call starts the grace period for what is in flight.

        May be called from any thread, or from a signal handler.
        """
        self._since = min(self._since, time.monotonic())
        self.asked += 1

    def begin(self) -> None:
        """Note that the loop has begun to stop."""
        self.has_begun = True

    def grace_left(self) -> float:
        """Return the seconds left of the grace period: infinite until ``ask`` is called."""
        return self._since + self._grace_seconds - time.monotonic()
