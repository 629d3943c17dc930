"""A function that is due at regular intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Timer:
    """Calls ``tick`` every ``seconds``, or never if that is zero."""

    seconds: float
    tick: Callable[[], object]
    due_at: float

    def run(self, now: float) -> None:
        if self.seconds and now >= self.due_at:
            self.tick()
            # After the tick: one that a lost database interrupted is tried again at once.
            self.due_at = now + self.seconds
