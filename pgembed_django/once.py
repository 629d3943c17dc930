"""Log a lasting problem once, not each time it recurs."""

from __future__ import annotations

from collections.abc import Hashable


class Told:
    """The problems that were logged, with their reasons."""

    def __init__(self) -> None:
        self._reasons: dict[Hashable, str] = {}

    def is_new(self, what: Hashable, reason: str) -> bool:
        """Note why something fails. Return whether this reason is new, and so should be logged."""
        before = self._reasons.get(what)
        self._reasons[what] = reason
        return reason != before

    def clear(self, what: Hashable) -> None:
        """Note that something works again: its next failure is new."""
        self._reasons.pop(what, None)
