"""Tell what goes on being wrong once, not each second that it is tried again."""

from __future__ import annotations

from collections.abc import Hashable


class Told:
    """What was told of things that are wrong, and are tried again and again."""

    def __init__(self) -> None:
        self._reasons: dict[Hashable, str] = {}

    def is_new(self, what: Hashable, reason: str) -> bool:
        """Note why something is wrong, and tell whether that has not been told yet."""
        before = self._reasons.get(what)
        self._reasons[what] = reason
        return reason != before

    def clear(self, what: Hashable) -> None:
        """It is well by now: when it is wrong again, that is news."""
        self._reasons.pop(what, None)
