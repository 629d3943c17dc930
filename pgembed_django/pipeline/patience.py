"""How long other jobs wait so that a suspect one can run alone."""

from __future__ import annotations

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 120.0


class Patience:
    """Waits for a bounded time, then lets the other jobs go on for as long.

    Each wait is twice as long as the last one, so in the end all held jobs end within one.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew: there is nothing left to wait for."""
        self._seconds = FIRST_SECONDS
        self._since: float | None = None
        self._resumes_at = float("-inf")

    def lasts(self, now: float) -> bool:
        """Return whether to begin or keep waiting."""
        if now < self._resumes_at:
            return False
        if self._since is None:
            self._since = now
        if now - self._since >= self._seconds:
            self.end(now)
            return False
        return True

    def end(self, now: float) -> None:
        """Let the others go on: the wait was in vain."""
        self._since = None
        self._resumes_at = now + self._seconds
        self._seconds = min(2 * self._seconds, LONGEST_SECONDS)
