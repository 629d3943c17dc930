"""Log a lasting problem once, not each time that it is met again."""

from __future__ import annotations

from collections.abc import Hashable


class Told:
    """The problems that were logged, and for what reason."""

    def __init__(self) -> None:
        self._reasons: dict[Hashable, str] = {}

    def is_new(self, what: Hashable, reason: str) -> bool:
        """Note why something fails. Return whether that reason is yet to be logged."""
        before = self._reasons.get(what)
        self._reasons[what] = reason
        return reason != before

    def clear(self, what: Hashable) -> None:
        """Note that it works again: the next failure is logged."""
        self._reasons.pop(what, None)
