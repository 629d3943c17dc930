"""Whether a worker is to end, and how soon."""

from __future__ import annotations

import time


class Stopping:
    """How often the worker was asked to stop, and since when it has been stopping."""

    def __init__(self, *, grace_seconds: float) -> None:
        self.asked = 0
        """Once: after what is in flight. Twice: at once."""
        self._grace_seconds = grace_seconds
        self._since: float | None = None

    def ask(self) -> None:
        """Ask once more. May be called from any thread, or from a signal handler."""
        self.asked += 1

    @property
    def has_begun(self) -> bool:
        return self._since is not None

    def begin(self) -> None:
        """Start the grace of what is in flight."""
        self._since = time.monotonic()

    def grace_left(self) -> float:
        """Return how many seconds of it are left. Before it has begun: infinitely many."""
        if self._since is None:
            return float("inf")
        return self._since + self._grace_seconds - time.monotonic()
