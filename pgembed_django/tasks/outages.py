"""Queues that wait: a provider that their tasks declare is down, or a person has paused them.

An outage pauses the queue in this worker, longer each time. After the pause one task at a time is
started, until one has met a provider that answers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pgembed_django import events
from pgembed_django.core.adapting import doubled
from pgembed_django.core.text import clean
from pgembed_django.exceptions import InputRefused, ProviderLost, ProviderUnavailable
from pgembed_django.queue import jobs
from pgembed_django.queue.handler import Hindrances
from pgembed_django.queue.in_flight import InFlight
from pgembed_django.queue.jobs import Claim, Paused
from pgembed_django.tasks.limits import UNLIMITED

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 60.0
MAX_ASKED_SECONDS = 3600.0
"""The longest wait that a provider may ask for."""

READ_SECONDS = 5.0
"""How long a worker may miss what a person has paused or resumed."""


@dataclass(slots=True)
class Outage:
    """A provider of a queue does not answer."""

    provider: str
    reason: str = ""
    pause_seconds: float = 0.0
    """The length of the last pause."""
    until: float = 0.0


class Outages:
    """Which queues wait, and why."""

    def __init__(
        self,
        queues: Iterable[str],
        *,
        held: InFlight,
        using: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queues = list(queues)
        self._held = held
        self._using = using
        self._clock = clock
        self._down: dict[str, Outage] = {}
        self._providers: dict[str, set[str]] = {}
        """By queue: those that its tasks were found to declare while a person had paused them."""
        self._paused = Paused({}, {})
        self._read_at = float("-inf")

    def read_if_old(self) -> None:
        """Read again after a while what a person has paused."""
        if self._clock() - self._read_at >= READ_SECONDS:
            self._paused = jobs.paused(using=self._using)
            self._read_at = self._clock()

    def places(self, queue: str) -> int:
        """Return how many tasks of a queue may start, as far as this is about outages."""
        if self._paused_by(queue) is not None:
            return 0
        outage = self._down.get(queue)
        if outage is None:
            return UNLIMITED
        if outage.until > self._clock():
            return 0
        running = sum(job.claim.spec == queue for job in self._held.jobs.values())
        return max(1 - running, 0)

    def keeps(self, claim: Claim, task: Any) -> bool:
        """Return whether a claimed task must not begin now. Then it is given back."""
        provider = getattr(task, "provider", None)
        if provider in self._paused.providers:
            self._providers.setdefault(claim.spec, set()).add(provider)
            self._held.release(claim, delay_seconds=READ_SECONDS)
            return True
        outage = self._down.get(claim.spec)
        if outage is None or outage.until <= self._clock():
            return False
        self._held.release(claim, delay_seconds=outage.until - self._clock())
        return True

    def ended(self, claim: Claim, task: Any, error: BaseException | None) -> bool:
        """Take note of how a run has met its provider. Return whether that has ended its task."""
        provider = getattr(task, "provider", None)
        if provider is None:
            return False
        if not isinstance(error, ProviderUnavailable):
            self._answered(claim.spec, provider)
            if isinstance(error, InputRefused):
                self._held.fail(claim, f"{error}")
            return isinstance(error, InputRefused)
        outage = self._pause(claim.spec, provider, error)
        is_lost = isinstance(error, ProviderLost)
        if is_lost and claim.outages >= self._held.settings.max_crashes:
            # At first others were with the provider as well. Each later time it ran alone.
            what = f"{provider} went down {claim.outages} times at this task alone: {error}"
            self._held.fail(claim, what)
        else:
            delay = max(outage.until - self._clock(), 0.0)
            reason = outage.reason
            self._held.release(claim, delay_seconds=delay, reason=reason, outages=int(is_lost))
        return True

    @property
    def wait_seconds(self) -> float:
        """The seconds until a queue that waits is to be looked at again."""
        now = self._clock()
        waits = [outage.until - now for outage in self._down.values() if outage.until > now]
        if any(self._paused_by(queue) is not None for queue in self._queues):
            waits.append(READ_SECONDS)
        return min(waits, default=float("inf"))

    def hindrances(self) -> Hindrances:
        """Return the queues that wait, for people."""
        down = dict(self._down)
        by_hand = {queue: self._paused_by(queue) for queue in self._queues}
        reasons = {queue: outage.reason for queue, outage in down.items()}
        named = {queue: f"Paused by {by}" for queue, by in by_hand.items() if by is not None}
        now = self._clock()
        return Hindrances(
            named | reasons,
            {queue: max(outage.until - now, 0.0) for queue, outage in down.items()},
        )

    def _paused_by(self, queue: str) -> str | None:
        """Return who has paused a queue, or a provider that its tasks declare."""
        if (by := self._paused.specs.get(queue)) is not None:
            return by
        declared = self._providers.get(queue, ())
        return next((by for one, by in self._paused.providers.items() if one in declared), None)

    def _answered(self, queue: str, provider: str) -> None:
        """End an outage, unless the run began before its pause: that says nothing about now."""
        outage = self._down.get(queue)
        if outage and outage.provider == provider and outage.until <= self._clock():
            del self._down[queue]
            events.tell(events.PROVIDER_BACK, provider=provider)

    def _pause(self, queue: str, provider: str, error: ProviderUnavailable) -> Outage:
        """Pause a queue: twice as long each time, or as long as the provider asks."""
        outage = self._down.setdefault(queue, Outage(provider))
        outage.reason = clean(f"{provider}: {error}")  # shown in the log and to people
        if outage.until > self._clock():
            return outage  # another task of the same outage
        outage.provider = provider
        outage.pause_seconds = doubled(
            outage.pause_seconds, first=FIRST_PAUSE_SECONDS, most=MAX_PAUSE_SECONDS
        )
        asked = min(error.retry_after_seconds or 0.0, MAX_ASKED_SECONDS)
        seconds = max(asked, outage.pause_seconds * random.uniform(0.75, 1.25))
        outage.until = self._clock() + seconds
        events.tell(
            events.PROVIDER_PAUSED,
            provider=provider,
            seconds=seconds,
            error=outage.reason,
            milliseconds=0.0,
        )
        return outage
