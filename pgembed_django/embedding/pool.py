"""The requests in flight to one provider, and its pause while it is down.

The threads in here only call the provider. Only the loop's thread uses the database.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgembed_django.core.adapting import doubled
from pgembed_django.core.text import clean
from pgembed_django.core.threads import Inline, Threads
from pgembed_django.embedding.rate_limits import limits_of
from pgembed_django.exceptions import ProviderError, ProviderMisconfigured, ProviderUnavailable
from pgembed_django.providers import NotInstalled
from pgembed_django.providers.base import Embedded, Provider, Vectors
from pgembed_django.providers.batching import Suspected
from pgembed_django.providers.http import MAX_WAIT_SECONDS
from pgembed_django.providers.recognition import Known

if TYPE_CHECKING:
    from pgembed_django.embedding.units import Wanted

Outcomes = list[Embedded | ProviderError]

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 60.0

BY_HAND_SECONDS = 5.0
"""How soon to look again at the units of a provider that a person has paused."""

PATIENCE_SECONDS = 3.0
"""How long to hold units while their provider's quota is used up."""


@dataclass(slots=True, eq=False)
class Sight:
    """What the model behind a request is compared with, and what it has made of the known texts."""

    known: Sequence[Known | None]
    """For each text what its space's model is recognized by. None: nothing yet."""
    seconds: float
    """How long the model behind a connection counts as recognized."""
    vectors: Vectors | None = None
    """Set by the thread that asks."""


def outage_of(request: Future[Outcomes]) -> ProviderUnavailable | None:
    """Return the outage that a request met, if it met one."""
    error = request.exception()
    outcomes = [error] if error else request.result()
    return next((one for one in outcomes if isinstance(one, ProviderUnavailable)), None)


class Pool:
    """Sends requests to one provider: as many at once as keep its model busy, or ``concurrency``.

    An outage pauses the pool. After the pause comes a health check, and once that succeeds, one
    request at a time until the first succeeds. ``wake`` is called from a pool thread when a
    request has ended.
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
        self._concurrency = concurrency
        self.name = str(provider)
        self.limits = limits_of(provider.alias)
        self.queue: deque[Wanted] = deque()
        self.in_flight = 0
        self.reason = ""
        self.paused_by: str | None = None
        """The name of the person who paused the provider. None: nobody did."""
        self._wake = wake
        self._clock = clock
        self._paused_until = 0.0
        self.pause_seconds = 0.0
        """The length of the last pause. Zero: the provider is up."""
        self._quota_until = 0.0
        self._has_answered = False
        self._is_exclusive = False
        self._executor: Inline | Threads = (
            Inline() if inline else Threads(concurrency, name=f"pgembed-{provider.alias}")
        )

    @property
    def concurrency(self) -> int:
        """How many requests may be in flight at once. More once a local model is loaded."""
        return self.provider.concurrency or self._concurrency

    @property
    def is_down(self) -> bool:
        """Whether there was an outage, and no text was embedded since."""
        return self.pause_seconds > 0

    @property
    def is_lost(self) -> bool:
        """Whether the provider cannot be built, so that waiting does not help."""
        return isinstance(self.provider, NotInstalled)

    @property
    def is_to_be_probed(self) -> bool:
        """Whether the pause is over, and the next request must be a health check."""
        return self.is_down and not (self._has_answered or self.in_flight or self.paused_seconds)

    @property
    def is_waiting(self) -> bool:
        """Whether nothing can be sent for so long that its units should be given back."""
        quota_seconds = self._quota_until - self._clock()
        is_out_of_reach = self.is_down and self.free <= 0
        return is_out_of_reach or quota_seconds > PATIENCE_SECONDS or self.paused_by is not None

    @property
    def paused_seconds(self) -> float:
        """How many seconds nothing may be sent, because of a pause or a used-up quota."""
        by_hand = 0.0 if self.paused_by is None else BY_HAND_SECONDS
        now = self._clock()
        return max(by_hand, self._paused_until - now, self._quota_until - now)

    @property
    def free(self) -> int:
        """How many requests with texts may start now."""
        if self.paused_seconds or self._is_exclusive or (self.is_down and not self._has_answered):
            return 0
        return (1 if self.is_down else self.concurrency) - self.in_flight

    def submit(
        self, texts: Sequence[str], *, sight: Sight | None = None, exclusively: bool = False
    ) -> Future[Outcomes]:
        """Start one request. ``exclusively``: after a health check, with no other in flight.

        ``sight``: compare the model that answers with those of the texts' spaces. The outcome of
        a text whose space has another one is ``AnotherModel``. Without texts it is a health check.
        """
        # If a health check succeeded, a refused key is due to a text: a wrong key is refused for
        # any. But a server that is busy or above its limit may pass the check and still refuse a
        # batch. Only after the longest pause is that ruled out.
        suspected: Suspected = None
        if self._has_answered:
            is_rested = self.pause_seconds >= MAX_PAUSE_SECONDS
            suspected = ProviderUnavailable if is_rested else ProviderMisconfigured
        self.in_flight += 1
        self._is_exclusive = exclusively
        if isinstance(self._executor, Threads) and self.concurrency > self._concurrency:
            self._executor.grow(self.concurrency)
        ask_first = exclusively or not texts
        future = self._executor.submit(self._embed, texts, sight, ask_first, suspected)
        future.add_done_callback(lambda _: self._wake())
        return future

    def ended(self, future: Future[Outcomes]) -> bool:
        """Note a request's end. An outage pauses the provider. Any other result ends its outage.

        Returns whether it has paused the provider, which another request may have done before.
        """
        self.in_flight -= 1
        self._is_exclusive = False
        is_paused = self.is_down and self._paused_until > self._clock()
        if outage := outage_of(future):
            self._pause(outage)
            return not is_paused
        if is_paused:
            return False  # sent before the pause: it says nothing about the server now
        self._has_answered = True
        if future.exception() or future.result():
            # A health check is not enough to end an outage: it is within any limit.
            self.pause_seconds = 0.0
            self.reason = ""
        return False

    def await_quota(self, seconds: float) -> None:
        """Send nothing for ``seconds``: all workers together have used up the quota."""
        self._quota_until = self._clock() + seconds

    def close(self) -> None:
        """End the threads, without waiting for requests in flight."""
        self._executor.shutdown(wait=False)

    def _embed(
        self, texts: Sequence[str], sight: Sight | None, ask_first: bool, suspected: Suspected
    ) -> Outcomes:
        """Run in a thread: embed texts, then see whether the model is the one of their spaces."""
        outcomes = self.provider.embed_each(texts, ask_first=ask_first, suspected=suspected)
        made = [
            (text, outcome.vector)
            for text, outcome in zip(texts, outcomes, strict=True)
            if isinstance(outcome, Embedded)
        ]
        if sight is None or not made:
            return outcomes
        sight.vectors, strangers = self.provider.canary.look(
            {one for one in sight.known if one is not None},
            seconds=sight.seconds,
            made=made[0] if None in sight.known else None,
        )
        return [
            strangers.get(one, outcome) if one is not None else outcome
            for one, outcome in zip(sight.known, outcomes, strict=True)
        ]

    def _pause(self, error: ProviderUnavailable) -> None:
        """Pause after an outage: twice as long each time, or as long as the server asks."""
        self.reason = clean(str(error))  # shown in the log, at the port, and by other processes
        if self._paused_until > self._clock():
            return  # another request of the same outage
        self._has_answered = False
        if error.retry_after_seconds == 0:
            # The server answers, and only this request gave up: no reason for a longer pause.
            self.pause_seconds = self.pause_seconds or FIRST_PAUSE_SECONDS
        else:
            self.pause_seconds = doubled(
                self.pause_seconds, first=FIRST_PAUSE_SECONDS, most=MAX_PAUSE_SECONDS
            )
        asked = min(error.retry_after_seconds or 0.0, MAX_WAIT_SECONDS)
        jittered = self.pause_seconds * random.uniform(0.75, 1.25)
        self._paused_until = self._clock() + max(asked, jittered)
