"""Fill batches across units, keep requests in flight, hand the outcomes to their units."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pgembed_django import events, spaces
from pgembed_django.core import faults
from pgembed_django.embedding import outcomes
from pgembed_django.embedding.pool import Pool, Sight
from pgembed_django.embedding.rate_limits import RateLimiter
from pgembed_django.embedding.units import Batch, Failure, Live, Part, Unit, Units, Wanted
from pgembed_django.embedding.writer import Writer
from pgembed_django.exceptions import ProviderError, ProviderUnavailable
from pgembed_django.models import Space
from pgembed_django.providers import NotInstalled
from pgembed_django.providers.base import Embedded, Provider
from pgembed_django.providers.recognition import AnotherModel, Known, is_alike

Outcome = Embedded | ProviderError

RECOGNIZED_SECONDS = 30.0
"""How often to note that a space's model was recognized."""


class Embedder:
    """Sends what is queued in the pools of providers.

    Their threads never touch the database: quotas are reserved here, in the loop's own.
    """

    def __init__(
        self,
        *,
        units: Units,
        writer: Writer,
        wake: Callable[[], None],
        inline: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.units = units
        self.writer = writer
        self.pools: list[Pool] = []
        """One for each provider that a live space needs."""
        self._limiter = RateLimiter(using=units.using)
        self._wake = wake
        self._inline = inline
        self._clock = clock
        self._of_space: dict[int, Pool] = {}
        self.batches: list[Batch] = []
        """The requests in flight."""
        self._known: dict[int, Known | None] = {}
        self._recognized_at: dict[int, float] = {}

    @property
    def wait_seconds(self) -> float:
        """The shortest time that queued chunks must wait for a quota or a provider."""
        return min((pool.paused_seconds for pool in self.pools if pool.queue), default=0.0)

    @property
    def in_flight(self) -> set[Unit]:
        """The units that are with a provider now."""
        return {one.unit for batch in self.batches for one in batch.wanted}

    def pool(self, space: Space) -> Pool:
        """Return the pool of a space's provider. Spaces of one provider share it."""
        if space.pk not in self._of_space:
            self._of_space[space.pk] = self._pool_for(spaces.provider_of_texts(space))
        return self._of_space[space.pk]

    def pools_of(self, live: Iterable[Space]) -> set[Pool]:
        """Return the pools of the providers of spaces."""
        return {self.pool(space) for space in live}

    def follow(self, live: Live) -> None:
        """Keep the pools of the live spaces, and tell them who has paused their providers."""
        self._known = {space.pk: spaces.known_of(space) for space in live}
        kept = {}
        for space in live:
            pool, provider = self.pool(space), spaces.provider_of_texts(space)
            if pool.is_lost != isinstance(provider, NotInstalled):
                pool = self._pool_for(provider)  # its weights are gone, or back again
            pool.paused_by = live.paused.providers.get(space.provider)
            kept[space.pk] = pool
        self._of_space = kept
        for pool in set(self.pools) - set(kept.values()):
            if not (pool.queue or pool.in_flight):
                self.pools.remove(pool)
                pool.close()
                pool.provider.close()

    def send(self) -> bool:
        """Send as many batches as the providers take. Return whether there were any.

        What waits for a provider that is paused fails of that.
        """
        before = len(self.batches)
        for pool in self.pools:
            if pool.pause_seconds and pool.is_to_be_probed:
                self.batches.append(Batch(pool, [], pool.submit([]), self._clock()))
            while pool.queue and pool.free > 0:
                wanted = self._fill(pool)
                if wanted and not self._send(pool, wanted):
                    pool.queue.extendleft(reversed(wanted))
                    break
            if pool.queue and pool.is_waiting:
                outage = Failure(pool, ProviderUnavailable(pool.reason))
                for unit, part in dict.fromkeys((one.unit, one.part) for one in pool.queue):
                    self._fail(unit, part, outage)
                pool.queue.clear()
        return len(self.batches) > before

    def collect(self) -> bool:
        """Hand answers to their units. Return whether there were any."""
        done = [batch for batch in self.batches if batch.future.done()]
        for batch in done:
            self._learn(batch)  # before it is let go: this may lose the database
            self.batches.remove(batch)
            self._hand_out(batch)
        return bool(done)

    def look_at_quotas(self) -> None:
        """Find used-up quotas before anything is claimed for them."""
        if limited := [pool for pool in self.pools if pool.limits and not pool.queue]:
            self._limiter.look(limited)

    def close(self) -> None:
        """Let the pool threads end."""
        for pool in self.pools:
            pool.close()

    def _pool_for(self, provider: Provider) -> Pool:
        for pool in self.pools:
            if pool.provider is provider:
                return pool
        pool = Pool(
            provider,
            concurrency=self.units.settings.concurrency,
            wake=self._wake,
            inline=self._inline,
            clock=self._clock,
        )
        self.pools.append(pool)
        return pool

    def _fill(self, pool: Pool) -> list[Wanted]:
        """Take the chunks of a batch from a pool's queue: as many as one request takes, or one."""
        wanted: list[Wanted] = []
        by_id = self.units.by_id
        quota = pool.limits.tokens_at_once if pool.limits else None
        limits = [one for one in (quota, pool.provider.max_tokens_per_batch) if one is not None]
        tokens = min(limits, default=None)
        while pool.queue and len(wanted) < pool.provider.batch_size:
            unit, part, chunk = one = pool.queue[0]
            is_held = by_id.get(unit.claim.id) is unit
            if is_held and part in unit.parts and part.failure is None:
                if wanted and not _go_together(wanted[0].unit, unit):
                    break
                if tokens is not None:
                    tokens -= pool.provider.weigh_document(chunk.text)
                    if wanted and tokens < 0:
                        break
                wanted.append(one)
            pool.queue.popleft()
        return wanted

    def _send(self, pool: Pool, wanted: list[Wanted]) -> bool:
        """Send a batch. Return whether that was possible."""
        # Its provider went down while it had this text.
        is_suspect = wanted[0].unit.claim.outages > 0
        if is_suspect and pool.in_flight:
            return False
        if pool.limits and not self._limiter.allows(pool, pool.limits, wanted):
            return False
        sight = None
        if seconds := self.units.settings.canary_seconds:
            sight = Sight([self._known.get(one.part.space_id) for one in wanted], seconds)
        texts = [one.chunk.text for one in wanted]
        future = pool.submit(texts, sight=sight, exclusively=is_suspect)
        self.batches.append(Batch(pool, wanted, future, self._clock(), sight))
        for one in wanted:
            one.part.in_flight += 1
        return True

    def _hand_out(self, batch: Batch) -> None:
        has_paused = batch.pool.ended(batch.future)
        results = _outcomes(batch)
        found = list(zip(batch.wanted, results, strict=True))
        for one, outcome in found:
            part = one.part
            part.in_flight -= 1
            if isinstance(outcome, Embedded):
                part.vectors[one.chunk.digest] = outcome
                part.waiting.discard(one.chunk.digest)
        for (unit, part, _), outcome in found:
            if unit not in self.units or part not in unit.parts:
                continue  # lost, or ended because of another of its chunks
            if not isinstance(outcome, Embedded):
                self._fail(unit, part, Failure(batch.pool, outcome))
                continue
            if part.waiting:
                self.writer.to_stage.append((unit, part))
            self.units.settle(unit)
        _emit(batch, results, has_paused=has_paused, seconds=self._clock() - batch.started)
        # Last: these may lose the database, and by now the answers are handed out.
        self._note_models(batch)
        if batch.pool.limits:
            self._limiter.pay_up(batch.pool, batch.pool.limits)

    def _fail(self, unit: Unit, part: Part, failure: Failure) -> None:
        """Send no more of a part."""
        if part.failure is None or outcomes.severity(failure) < outcomes.severity(part.failure):
            part.failure = failure
        self.units.settle(unit)

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
                    space, vectors, facts=facts, using=self.units.using
                )
            known = self._known[space.pk]
            if known is not None and not is_alike(known, vectors):
                results[index] = ProviderUnavailable(f"{known.space} has met another model.")

    def _note_models(self, batch: Batch) -> None:
        """Note for all processes whether the spaces of a batch have met their models."""
        if batch.sight is None:
            return
        using, provider = self.units.using, batch.pool.provider
        seen = {
            one.part.space: outcome
            for one, outcome in zip(batch.wanted, _outcomes(batch), strict=True)
            if isinstance(outcome, Embedded | AnotherModel)
        }
        for space, outcome in seen.items():
            if isinstance(outcome, AnotherModel):
                spaces.note_exchange(space, outcome, using=using)
                self._of_space[space.pk] = self._pool_for(spaces.provider_of_texts(space))
                continue
            at = provider.canary.recognized_at
            if at - self._recognized_at.get(space.pk, float("-inf")) >= RECOGNIZED_SECONDS:
                self._recognized_at[space.pk] = at
                seconds = provider.clock() - at
                spaces.note_recognized(space, seconds_ago=seconds, using=using)


def _go_together(one: Unit, other: Unit) -> bool:
    """Return whether chunks of both may share a batch. An outage suspect's share with none."""
    return one is other or not (one.claim.outages or other.claim.outages)


def _outcomes(batch: Batch) -> list[Outcome]:
    """Return one outcome per chunk. If the whole batch failed, all share its error."""
    error = batch.future.exception()
    if error is None:
        return batch.future.result()
    if not isinstance(error, ProviderError):
        error = ProviderError(faults.described(error))
    return [error] * len(batch.wanted)


def _emit(batch: Batch, found: Sequence[Outcome], *, has_paused: bool, seconds: float) -> None:
    """Log the outcomes of a batch, never its texts. ``has_paused``: as ``Pool.ended`` returned."""
    pool, provider = batch.pool, batch.pool.provider
    milliseconds = seconds * 1000
    # A health check has no outcomes, only an error.
    errors = [*found, batch.future.exception()]
    is_outage = any(isinstance(one, ProviderUnavailable) for one in errors)
    if not batch.wanted and not pool.paused_seconds:
        events.tell(events.PROVIDER_BACK, provider=provider.alias)
        return
    if is_outage:
        events.tell(
            events.PROVIDER_PAUSED,
            about=batch,
            is_logged=has_paused,
            provider=provider.alias,
            seconds=pool.paused_seconds,
            error=pool.reason,
            milliseconds=milliseconds,
        )
    embedded = [
        (one, outcome)
        for one, outcome in zip(batch.wanted, found, strict=True)
        if isinstance(outcome, Embedded)
    ]
    named: dict[str, Any] = {"provider": provider.alias, "model": pool.name}
    of_batch = named | {
        "rows": len({one.unit for one in batch.wanted}),
        "milliseconds": milliseconds,
    }
    if embedded and not is_outage:
        events.tell(events.BATCH_EMBEDDED, about=batch, chunks=len(embedded), **of_batch)
    if len(embedded) < len(found) and not is_outage:
        refused = len(found) - len(embedded)
        events.tell(
            events.BATCH_FAILED, about=batch, chunks=len(found), refused=refused, **of_batch
        )
    cut = {
        (one.unit.claim.spec, one.unit.claim.source_pk)
        for one, outcome in embedded
        if outcome.was_cut
    }
    if cut:
        spec, source_pk = min(cut)
        events.tell(events.TEXTS_CUT, rows=len(cut), spec=spec, source_pk=source_pk, **named)
