"""Fill batches across units, keep requests in flight, hand the outcomes to their units."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from pgembed_django import spaces
from pgembed_django.exceptions import (
    InputRefused,
    ProviderLost,
    ProviderUnavailable,
)
from pgembed_django.models import Space
from pgembed_django.pipeline import batches
from pgembed_django.pipeline.holding import Holding
from pgembed_django.pipeline.live import Live
from pgembed_django.pipeline.rationing import Rationing
from pgembed_django.pipeline.units import Batch, Failure, Request, Unit
from pgembed_django.pool import Pool
from pgembed_django.providers.base import Embedded


class Embedding:
    """A queue of requests and a pool of threads for each provider.

    The threads never touch the database; quotas are taken here, in the loop's own.
    """

    def __init__(
        self,
        *,
        holding: Holding,
        wake: Callable[[], None],
        inline: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holding = holding
        self._rationing = Rationing(using=holding.using)
        self._wake = wake
        self._inline = inline
        self._clock = clock
        self._pools: dict[int, Pool] = {}
        self._queues: dict[Pool, deque[Request]] = {}
        self._batches: list[Batch] = []
        # In the order they came. A unit may be stranded with two providers at once.
        self._stranded: dict[tuple[Unit, Pool], None] = {}
        self._lost: set[tuple[Unit, Pool]] = set()
        self._failures: list[Failure] = []

    @property
    def queued(self) -> int:
        """How many chunks wait for a batch."""
        return sum(len(queue) for queue in self._queues.values())

    @property
    def pools(self) -> list[Pool]:
        """One for each provider that a live space needs."""
        return list(self._queues)

    @property
    def is_asking(self) -> bool:
        """Whether a request is in flight."""
        return any(pool.in_flight for pool in self._queues)

    @property
    def is_answered(self) -> bool:
        """Whether an answer has come that is not handed out yet."""
        return any(batch.future.done() for batch in self._batches)

    @property
    def wait_seconds(self) -> float:
        """How long what is queued waits at the least, for a quota or for a provider."""
        waits = [pool.paused_seconds for pool, queue in self._queues.items() if queue]
        return min(waits, default=0.0)

    @property
    def in_flight(self) -> set[Unit]:
        """The units that are with a provider just now."""
        return {request.unit for batch in self._batches for request in batch.requests}

    def pool(self, space: Space) -> Pool:
        """Return the pool of a space's provider. Spaces of one provider share it."""
        if space.pk not in self._pools:
            provider = spaces.provider_of(space)
            shared = [pool for pool in self._queues if pool.provider is provider]
            pool = shared[0] if shared else self._new_pool(space)
            self._pools[space.pk] = pool
            self._queues.setdefault(pool, deque())
        return self._pools[space.pk]

    def pause(self, live: Live) -> None:
        """Let the pools know who has paused their providers."""
        for space in live:
            self.pool(space).paused_by = live.paused.providers.get(space.provider)

    def enqueue(self, space: Space, requests: Iterable[Request]) -> None:
        """Add chunks to be embedded in a space."""
        self._queues[self.pool(space)].extend(requests)

    def send(self) -> bool:
        """Start as many requests as the providers take, and tell whether there were any."""
        before = len(self._batches)
        for pool, queue in self._queues.items():
            if pool.is_to_be_probed:
                self._batches.append(Batch(pool, [], pool.probe(), self._clock()))
            while queue and pool.free > 0:
                requests = self._fill(pool, queue)
                if requests and not self._send(pool, requests):
                    queue.extendleft(reversed(requests))
                    break
        return len(self._batches) > before

    def collect(self) -> bool:
        """Hand the answers that came back to their units, and tell whether there were any."""
        done = [batch for batch in self._batches if batch.future.done()]
        for batch in done:
            self._batches.remove(batch)
            self._hand_out(batch)
        self._end_failed()
        return bool(done)

    def look_at_quotas(self) -> None:
        """Note whose quota is used up, before anything is claimed for it."""
        self._rationing.look([pool for pool, queue in self._queues.items() if not queue])

    def stranded(self) -> list[tuple[Unit, Pool]]:
        """Return the units that wait for paused providers, until ``give_up`` lets each go.

        Their text can be stored. Those that have chunks in flight as well are let go when
        these are back.
        """
        in_flight = self.in_flight
        for pool, queue in self._queues.items():
            if pool.is_waiting:
                outage = ProviderUnavailable(pool.reason)
                for unit, part in {(request.unit, request.part) for request in queue}:
                    if unit in in_flight:
                        self._failures.append(Failure(unit, part, pool, outage))
                    elif unit in self.holding:
                        self._stranded[unit, pool] = None
                queue.clear()
        return list(self._stranded)

    def give_up(self, unit: Unit, pool: Pool) -> None:
        """Let go of a unit that waits for a paused provider.

        A space that is being built never delays the active one: only its part is dropped,
        and the reconciler brings it back. But where its provider went down with the text,
        the job has to remember it.
        """
        self._stranded.pop((unit, pool), None)
        is_lost = (unit, pool) in self._lost
        self._lost.discard((unit, pool))
        parts = [part for part in unit.parts if self.pool(part.space) is not pool]
        active = [part for part in parts if part.space.state == Space.State.ACTIVE]
        # Nor does a doubtful job end before that part has had its turn.
        if active and not is_lost and not (unit.is_doubtful and active[0].plan.is_fresh):
            unit.parts = parts
            self.holding.look_at(unit)
            return
        self.holding.give_back(
            unit,
            delay_seconds=0 if active and is_lost else pool.paused_seconds,
            reason=pool.reason,
            outages=int(is_lost),
        )

    def close(self) -> None:
        """Let the pool threads end."""
        for pool in self._queues:
            pool.close()

    def _new_pool(self, space: Space) -> Pool:
        return Pool(
            spaces.provider_of(space),
            concurrency=self.holding.settings.concurrency,
            wake=self._wake,
            inline=self._inline,
            clock=self._clock,
        )

    def _fill(self, pool: Pool, queue: deque[Request]) -> list[Request]:
        requests: list[Request] = []
        failed = {failure.part for failure in self._failures}
        tokens = self._rationing.tokens_at_once(pool)
        while queue and len(requests) < pool.provider.batch_size:
            request = queue[0]
            if (
                request.unit in self.holding
                and request.part in request.unit.parts
                and request.part not in failed
            ):
                if requests and not batches.go_together(requests[0], request):
                    break
                if tokens is not None:
                    tokens -= pool.provider.weigh_document(request.chunk.text)
                    if requests and tokens < 0:
                        break
                requests.append(request)
            queue.popleft()
        return requests

    def _send(self, pool: Pool, requests: list[Request]) -> bool:
        """Start a request, and tell whether it could be."""
        is_doubtful = requests[0].unit.is_doubtful
        if (is_doubtful and pool.in_flight) or not self._rationing.allows(pool, requests):
            return False
        future = pool.submit([request.chunk.text for request in requests], exclusively=is_doubtful)
        self._batches.append(Batch(pool, requests, future, self._clock()))
        return True

    def _hand_out(self, batch: Batch) -> None:
        batch.pool.ended(batch.future)
        for request, outcome in zip(batch.requests, batches.outcomes(batch), strict=True):
            unit, part = request.unit, request.part
            if unit not in self.holding or part not in unit.parts:
                continue  # lost, or ended by another of its chunks
            if isinstance(outcome, Embedded):
                part.vectors[request.chunk.digest] = outcome
                part.waiting.discard(request.chunk.digest)
                if part.waiting:
                    self.holding.to_stage.append((unit, part))
                else:
                    self.holding.look_at(unit)
            else:
                self._failures.append(Failure(unit, part, batch.pool, outcome))
        batches.tell(batch, seconds=self._clock() - batch.started)
        # Last: the database may be lost at it, and the answers are handed out by then.
        self._rationing.pay_up(batch.pool)

    def _end_failed(self) -> None:
        """End the units whose chunks have failed, each when nothing of it is in flight any more.

        Its other chunks, of this batch or of one that comes back later, are staged: a retry
        would pay for them once more.
        """
        if not self._failures:
            return
        in_flight = self.in_flight
        failures, self._failures = self._failures, []
        # Of a text that its provider went down with, other chunks had not had their turn.
        failures.sort(key=lambda failure: not isinstance(failure.outcome, ProviderLost))
        for failure in failures:
            unit, outcome = failure.unit, failure.outcome
            if unit in in_flight:
                self._failures.append(failure)
            elif unit not in self.holding or failure.part not in unit.parts:
                continue  # lost, or ended by another of its chunks
            elif isinstance(outcome, ProviderLost):
                self._lose(unit, failure.pool, outcome)
            elif isinstance(outcome, ProviderUnavailable):
                self._stranded[unit, failure.pool] = None
            elif isinstance(outcome, InputRefused):
                self.holding.fail(unit, str(outcome))
            else:
                self.holding.retry(unit, str(outcome))

    def _lose(self, unit: Unit, pool: Pool, outage: ProviderLost) -> None:
        times = unit.claim.outages
        if times < self.holding.settings.max_crashes:
            self._lost.add((unit, pool))
            self._stranded[unit, pool] = None
            return
        # The first time it had company. Since then the provider had just answered a plain
        # word each time, and nobody else's text was with it.
        self.holding.fail(
            unit, f"{pool.provider} went down {times} times at this text alone: {outage}"
        )
