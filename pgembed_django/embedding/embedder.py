"""Fill batches across units, keep requests in flight, hand the outcomes to their units.

Also keep to the providers' quotas: reserve before a batch is sent, settle when it is back.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable

from pgembed_django import quotas, spaces
from pgembed_django.embedding import outcomes
from pgembed_django.embedding.live import Live
from pgembed_django.embedding.outcomes import Failures
from pgembed_django.embedding.pool import Pool, Sight
from pgembed_django.embedding.units import Batch, Failure, Unit, Units, Wanted
from pgembed_django.exceptions import ProviderUnavailable
from pgembed_django.models import Space
from pgembed_django.providers import NotInstalled
from pgembed_django.providers.base import Embedded, Provider
from pgembed_django.providers.recognition import AnotherModel, Known, is_alike

RECOGNIZED_SECONDS = 30.0
"""How often to note that a space's model was recognized."""


class Embedder:
    """A queue of chunks and a pool of threads for each provider.

    The threads never touch the database: quotas are reserved here, in the loop's own.
    """

    def __init__(
        self,
        *,
        holding: Units,
        wake: Callable[[], None],
        inline: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holding = holding
        self.failures = Failures(holding=holding)
        self._limiter = RateLimiter(using=holding.using)
        self._wake = wake
        self._inline = inline
        self._clock = clock
        self._pools: dict[int, Pool] = {}
        self._queues: dict[Pool, deque[Wanted]] = {}
        self._batches: list[Batch] = []
        self._known: dict[int, Known | None] = {}
        self._recognized_at: dict[int, float] = {}

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
        """Whether an answer has come but is not handed out yet."""
        return any(batch.future.done() for batch in self._batches)

    @property
    def wait_seconds(self) -> float:
        """The shortest time that queued chunks must wait for a quota or a provider."""
        waits = [pool.paused_seconds for pool, queue in self._queues.items() if queue]
        return min(waits, default=0.0)

    @property
    def in_flight(self) -> set[Unit]:
        """The units that are with a provider now."""
        return {one.unit for batch in self._batches for one in batch.wanted}

    @property
    def awaited(self) -> set[Unit]:
        """Those in flight, and those queued for a provider that can be asked."""
        failed = self.failures.parts
        return self.in_flight | {
            one.unit
            for pool, queue in self._queues.items()
            if not pool.is_waiting
            for one in queue
            if one.part not in failed
        }

    def pool(self, space: Space) -> Pool:
        """Return the pool of a space's provider. Spaces of one provider share it."""
        if space.pk not in self._pools:
            self._pools[space.pk] = self._pool_for(spaces.provider_of_texts(space))
        return self._pools[space.pk]

    def follow(self, live: Live) -> None:
        """Keep the pools of the live spaces, and tell them who has paused their providers."""
        kept = {space.pk: self.pool(space) for space in live}
        self._known = {space.pk: spaces.known_of(space) for space in live}
        for space in live:
            provider = spaces.provider_of_texts(space)
            if kept[space.pk].is_lost != isinstance(provider, NotInstalled):
                kept[space.pk] = self._pool_for(provider)  # its weights are gone, or back again
            kept[space.pk].paused_by = live.paused.providers.get(space.provider)
        self._pools = kept
        for pool in self._queues.keys() - self._pools.values():
            if not (self._queues[pool] or pool.in_flight):
                del self._queues[pool]
                pool.close()

    def enqueue(self, space: Space, wanted: Iterable[Wanted]) -> None:
        """Add chunks to be embedded in a space."""
        self._queues[self.pool(space)].extend(wanted)

    def send(self) -> bool:
        """Send as many batches as the providers take. Return whether there were any."""
        before = len(self._batches)
        for pool, queue in self._queues.items():
            if pool.is_to_be_probed:
                self._batches.append(Batch(pool, [], pool.probe(), self._clock()))
            while queue and pool.free > 0:
                wanted = self._fill(pool, queue)
                if wanted and not self._send(pool, wanted):
                    queue.extendleft(reversed(wanted))
                    break
        return len(self._batches) > before

    def collect(self) -> bool:
        """Hand answers to their units. Return whether there were any."""
        done = [batch for batch in self._batches if batch.future.done()]
        for batch in done:
            self._learn(batch)  # before it is let go: this may lose the database
            self._batches.remove(batch)
            self._hand_out(batch)
        if self.failures.parts:
            self.failures.end(awaited=self.awaited)
        return bool(done)

    def look_at_quotas(self) -> None:
        """Find used-up quotas before anything is claimed for them."""
        self._limiter.look([pool for pool, queue in self._queues.items() if not queue])

    def stranded(self) -> list[Failure]:
        """Return the parts that wait for paused providers, until ``failing`` gives each up.

        Their text can be stored. If another provider is still embedding chunks of a unit, the
        unit is kept until those are back.
        """
        waiting = [(pool, queue) for pool, queue in self._queues.items() if pool.is_waiting]
        if any(queue for _, queue in waiting):
            awaited = self.awaited
            for pool, queue in waiting:
                outage = ProviderUnavailable(pool.reason)
                for unit, part in {(one.unit, one.part) for one in queue}:
                    failure = Failure(unit, part, pool, outage)
                    if unit in awaited:
                        self.failures.add(failure)
                    elif unit in self.holding:
                        self.failures.strand(failure)
                queue.clear()
        return self.failures.stranded

    def close(self) -> None:
        """Let the pool threads end."""
        for pool in self._queues:
            pool.close()

    def _pool_for(self, provider: Provider) -> Pool:
        for pool in self._queues:
            if pool.provider is provider:
                return pool
        pool = Pool(
            provider,
            concurrency=self.holding.settings.concurrency,
            wake=self._wake,
            inline=self._inline,
            clock=self._clock,
        )
        self._queues[pool] = deque()
        return pool

    def _fill(self, pool: Pool, queue: deque[Wanted]) -> list[Wanted]:
        wanted: list[Wanted] = []
        failed = self.failures.parts
        tokens = self._limiter.tokens_at_once(pool)
        while queue and len(wanted) < pool.provider.batch_size:
            one = queue[0]
            if one.unit in self.holding and one.part in one.unit.parts and one.part not in failed:
                if tokens is not None:
                    tokens -= pool.provider.weigh_document(one.chunk.text)
                    if wanted and tokens < 0:
                        break
                wanted.append(one)
            queue.popleft()
        return wanted

    def _send(self, pool: Pool, wanted: list[Wanted]) -> bool:
        """Send a batch. Return whether that was possible."""
        is_doubtful = wanted[0].unit.is_doubtful
        if (is_doubtful and pool.in_flight) or not self._limiter.allows(pool, wanted):
            return False
        sight = None
        if seconds := self.holding.settings.canary_seconds:
            sight = Sight([self._known.get(one.part.space.pk) for one in wanted], seconds)
        texts = [one.chunk.text for one in wanted]
        future = pool.submit(texts, sight=sight, exclusively=is_doubtful)
        self._batches.append(Batch(pool, wanted, future, self._clock(), sight))
        return True

    def _hand_out(self, batch: Batch) -> None:
        has_paused = batch.pool.ended(batch.future)
        for one, outcome in zip(batch.wanted, outcomes.of(batch), strict=True):
            unit, part = one.unit, one.part
            if unit not in self.holding or part not in unit.parts:
                continue  # lost, or ended because of another of its chunks
            if isinstance(outcome, Embedded):
                part.vectors[one.chunk.digest] = outcome
                part.waiting.discard(one.chunk.digest)
                if part.waiting:
                    self.holding.to_stage.append((unit, part))
                else:
                    self.holding.look_at(unit)
            else:
                self.failures.add(Failure(unit, part, batch.pool, outcome))
        outcomes.tell(batch, has_paused=has_paused, seconds=self._clock() - batch.started)
        # Last: these may lose the database, and by now the answers are handed out.
        self._note_models(batch)
        self._limiter.pay_up(batch.pool)

    def _learn(self, batch: Batch) -> None:
        """Let spaces know their models. What another model has made meanwhile is asked again."""
        if batch.sight is None or batch.sight.vectors is None:
            return
        vectors, results = batch.sight.vectors, batch.future.result()
        for index, one in enumerate(batch.wanted):
            space = one.part.space
            if batch.sight.known[index] is not None or not isinstance(results[index], Embedded):
                continue
            if self._known.get(space.pk) is None:
                facts = batch.pool.provider.canary.facts
                self._known[space.pk] = spaces.learn(
                    space, vectors, facts=facts, using=self.holding.using
                )
            known = self._known[space.pk]
            if known is not None and not is_alike(known, vectors):
                results[index] = ProviderUnavailable(f"{known.space} has met another model.")

    def _note_models(self, batch: Batch) -> None:
        """Note for all processes whether the spaces of a batch have met their models."""
        if batch.sight is None:
            return
        using, provider = self.holding.using, batch.pool.provider
        seen = {
            one.part.space: outcome
            for one, outcome in zip(batch.wanted, outcomes.of(batch), strict=True)
            if isinstance(outcome, Embedded | AnotherModel)
        }
        for space, outcome in seen.items():
            if isinstance(outcome, AnotherModel):
                spaces.note_exchange(space, outcome, using=using)
                self._pools[space.pk] = self._pool_for(spaces.provider_of_texts(space))
                continue
            at = provider.canary.recognized_at
            if at - self._recognized_at.get(space.pk, float("-inf")) >= RECOGNIZED_SECONDS:
                self._recognized_at[space.pk] = at
                seconds = provider.clock() - at
                spaces.note_recognized(space, seconds_ago=seconds, using=using)


SPREAD_SECONDS = 0.5
"""How far apart workers that wait for the same quota wake up."""


class RateLimiter:
    """Called by the loop's own thread only: the quotas are in the database."""

    def __init__(self, *, using: str) -> None:
        self._using = using
        self._paid: dict[Pool, Counter[str]] = {}

    def tokens_at_once(self, pool: Pool) -> int | None:
        """Return how many tokens a batch should hold at most."""
        limits = quotas.limits(pool.provider.alias)
        return limits.tokens_at_once if limits else None

    def allows(self, pool: Pool, wanted: list[Wanted]) -> bool:
        """Reserve what a batch will use. If the quota is used up, let the pool wait for it."""
        alias = pool.provider.alias
        limits = quotas.limits(alias)
        if limits is None:
            return True
        tokens = sum(pool.provider.weigh_document(one.chunk.text) for one in wanted)
        wait = quotas.take(alias, limits, tokens=tokens, using=self._using)
        if wait:
            self._await(pool, wait)
            return False
        pool.provider.is_metered = True
        paid = self._paid.setdefault(pool, Counter(pool.provider.sent))
        paid.update(requests=1, tokens=tokens)
        return True

    def look(self, pools: list[Pool]) -> None:
        """Let pools with a used-up quota wait, so that nothing is claimed for them."""
        for pool in pools:
            if not pool.paused_seconds and quotas.limits(pool.provider.alias):
                self._await(pool, quotas.wait_seconds(pool.provider.alias, using=self._using))

    def pay_up(self, pool: Pool) -> None:
        """Charge what was sent beyond the reservation: halves, retries and probes of a batch."""
        alias = pool.provider.alias
        limits = quotas.limits(alias)
        paid = self._paid.get(pool)
        if limits is None or paid is None:
            return
        owed = Counter(pool.provider.sent) - paid
        if owed:
            paid.update(owed)
            quotas.owe(
                alias, limits, requests=owed["requests"], tokens=owed["tokens"], using=self._using
            )

    def _await(self, pool: Pool, seconds: float) -> None:
        if seconds:
            pool.await_quota(seconds + random.uniform(0, SPREAD_SECONDS * (seconds > 1)))
