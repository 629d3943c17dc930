"""What adapts to failures: sizes, waits, and batches that are halved to find the culprit. Pure."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

FIRST = 128
MOST = 1024
STEP_SECONDS = 0.1
"""How long a step over several items may take: others may be waiting for its end."""


def doubled(seconds: float, *, first: float, most: float) -> float:
    """Return the next of several waits: ``first``, then twice the last one, up to ``most``."""
    return min(seconds * 2 or first, most)


def isolate(attempt: Callable[[Sequence[T]], Iterable[Sequence[T]]], *groups: Sequence[T]) -> None:
    """Attempt groups of items, and then the groups that each attempt returns: see ``halves``.

    These come after all others, so that one bad item holds up as few others as possible.
    """
    todo = deque(group for group in groups if group)
    while todo:
        todo.extend(attempt(todo.popleft()))


def halves(items: Sequence[T]) -> list[Sequence[T]]:
    """Return the two halves of several items. Empty: there is one, so it is the culprit."""
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else []


class AdaptiveSize:
    """How many items to take at once: halved by a failure, doubled by later successes.

    Threads may share it.
    """

    def __init__(
        self,
        first: int | None = None,
        *,
        most: int = MOST,
        hold_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.size = FIRST if first is None else first
        self.has_failed = False
        """Whether the last items of this size failed, or took too long."""
        self._most = most
        self._hold_seconds = hold_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._held_until = float("-inf")

    def failed(self, count: int) -> None:
        """Take at most half of these next: they were too many."""
        with self._lock:
            # A thread that began before the size fell must not raise it.
            self.size = min(self.size, max(1, count // 2))
            self.has_failed = True
            self._held_until = self._clock() + self._hold_seconds

    def succeeded(self) -> None:
        """Take twice as many next, up to the most, unless the last change is not long ago."""
        with self._lock:
            self.has_failed = False
            if self._clock() >= self._held_until:
                self.size = min(self.size * 2, self._most)
                self._held_until = self._clock() + self._hold_seconds

    def took(self, seconds: float, count: int) -> None:
        """Adapt to how long a step over these took, so that the next takes its time or less."""
        if seconds > STEP_SECONDS:
            self.failed(count)
        elif count >= self.size and seconds * 2 < STEP_SECONDS:
            self.succeeded()
        else:
            self.has_failed = False
