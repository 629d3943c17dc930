"""That a worker is to end: after what is in flight, or at once."""

from __future__ import annotations

import time


class Stopping:
    """How often the worker was asked to stop, and since when it does so."""

    def __init__(self, *, grace_seconds: float) -> None:
        self.asked = 0
        """Twice: at once. Written from other threads, and by signal handlers."""
        self._grace_seconds = grace_seconds
        self._since: float | None = None

    @property
    def has_begun(self) -> bool:
        return self._since is not None

    def begin(self) -> None:
        """From now on what is in flight has its grace."""
        self._since = time.monotonic()

    def grace_left(self) -> float:
        """Return for how many seconds what is in flight is still waited for."""
        if self._since is None:
            return float("inf")
        return self._since + self._grace_seconds - time.monotonic()
