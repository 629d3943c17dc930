"""The requests in flight to one provider, and its pause while it is down.

The threads here talk to the provider only. The database is the loop's own thread's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from pgembed_django.exceptions import ProviderError, ProviderUnavailable
from pgembed_django.providers.base import Embedded, Provider

Outcomes = list[Embedded | ProviderError]

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 60.0
MAX_RETRY_AFTER_SECONDS = 600.0


class Inline(Executor):
    """Runs each request at once, in the caller's thread: for tests and ``--inline``."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except ProviderError as error:
            future.set_exception(error)
        return future


class Pool:
    """Up to ``concurrency`` requests to one provider at once; one while it is being probed.

    ``wake`` is called from a pool thread whenever a request has ended.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        concurrency: int,
        wake: Callable[[], None],
        inline: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.provider = provider
        self.concurrency = concurrency
        self.in_flight = 0
        self.reason = ""
        self._wake = wake
        self._clock = clock
        self._paused_until = 0.0
        self._pause_seconds = 0.0
        self._executor: Executor = (
            Inline()
            if inline
            else ThreadPoolExecutor(concurrency, thread_name_prefix=f"pgembed-{provider.alias}")
        )

    @property
    def is_down(self) -> bool:
        """Whether the last answer was an outage: paused, or waiting for its probe's answer."""
        return self._pause_seconds > 0

    @property
    def is_waiting(self) -> bool:
        """Whether it is down and nothing may be sent now: paused, or its probe is in flight."""
        return self.is_down and self.free <= 0

    @property
    def paused_seconds(self) -> float:
        """How long it is paused from now."""
        return max(0.0, self._paused_until - self._clock())

    @property
    def free(self) -> int:
        """How many requests may start now. One at a time until the first one succeeds again."""
        if self.paused_seconds:
            return 0
        return (1 if self.is_down else self.concurrency) - self.in_flight

    def submit(self, texts: Sequence[str]) -> Future[Outcomes]:
        """Start one request."""
        self.in_flight += 1
        future = self._executor.submit(self.provider.embed_each, texts)
        future.add_done_callback(lambda _: self._wake())
        return future

    def take(self, future: Future[Outcomes]) -> None:
        """Note a request's end: an outage pauses the provider, anything else ends a pause."""
        self.in_flight -= 1
        error = future.exception()
        if error is None:
            outages = [o for o in future.result() if isinstance(o, ProviderUnavailable)]
            error = outages[0] if outages else None
        if isinstance(error, ProviderUnavailable):
            self._pause(error)
        else:
            self._pause_seconds = 0.0
            self.reason = ""

    def close(self) -> None:
        """Let the threads end. Requests in flight are not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _pause(self, error: ProviderUnavailable) -> None:
        self.reason = str(error)
        if self.paused_seconds:
            return  # another request of the same outage
        doubled = min(self._pause_seconds * 2 or FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        self._pause_seconds = doubled
        asked = min(error.retry_after_seconds or 0.0, MAX_RETRY_AFTER_SECONDS)
        jittered = doubled * random.uniform(0.75, 1.25)
        self._paused_until = self._clock() + max(asked, jittered)
