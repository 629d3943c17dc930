"""Limit the size of requests, and count what was sent. No network."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pgembed_django.providers.base import Provider

HOLD_SECONDS: Final = 120.0
"""How long to keep a lower limit before it is doubled."""


class Pace:
    """A limit that is halved by a failure, held for a while, and doubled by later successes.

    The caller chooses what it counts: texts or tokens. Threads may share it.
    """

    def __init__(self, clock: Callable[[], float], *, hold_seconds: float = HOLD_SECONDS) -> None:
        self._clock = clock
        self._hold_seconds = hold_seconds
        self._lock = threading.Lock()
        self._limit: int | None = None
        self._too_much = 0
        self._changed_at = 0.0

    @property
    def limit(self) -> int | None:
        """How much one request may contain. None: no limit."""
        return self._limit

    def failed(self, size: int) -> None:
        """Allow half of this size from now on: a request of it was too large."""
        with self._lock:
            half = max(1, size // 2)
            # A thread that started before the limit fell must not raise it.
            if self._limit is None or half < self._limit:
                self._too_much = size if self._limit is None else max(size, self._too_much)
                self._limit = half
            self._changed_at = self._clock()

    def succeeded(self) -> None:
        """Note an answered request. Doubles the limit, if the last change was long enough ago."""
        with self._lock:
            if self._limit is None or self._clock() - self._changed_at < self._hold_seconds:
                return
            self._changed_at = self._clock()
            self._limit *= 2
            if self._limit > self._too_much:
                self._limit = None


class Meter:
    """Counts what was sent. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total: Counter[str] = Counter()

    @property
    def total(self) -> dict[str, int]:
        """How many ``requests`` and ``tokens`` were sent so far."""
        with self._lock:
            return dict(self._total)

    def add(self, *, requests: int, tokens: int) -> None:
        with self._lock:
            self._total.update(requests=requests, tokens=tokens)


def fitting_one_request(provider: Provider, texts: Sequence[str]) -> int:
    """Return how many of the first texts one request may contain: at least one."""
    fitting = min(len(texts), provider.texts_per_request)
    room = min(provider.token_pace.limit or math.inf, provider.max_tokens_per_batch or math.inf)
    if room == math.inf:  # counting tokens takes time
        return fitting
    for count, text in enumerate(texts[:fitting]):
        room -= provider.weigh(text)
        if room < 0 and count:
            return count
    return fitting
