"""From a due job to stored vectors. ``Pipeline.step`` is the walk of one saved row."""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from django.db import DatabaseError, transaction

from pgembed_django import conf, database, jobs, plan, spaces, store
from pgembed_django.chunkers import Chunk
from pgembed_django.exceptions import InputRefused, ProviderError, ProviderUnavailable
from pgembed_django.jobs import Claim
from pgembed_django.models import Space
from pgembed_django.pool import Outcomes, Pool
from pgembed_django.providers.base import Embedded
from pgembed_django.sources import load
from pgembed_django.specs import Spec

logger = logging.getLogger("pgembed_django")

TEXT_AHEAD_SECONDS = 0.1
"""A unit whose vectors take longer than this has its text stored ahead of them."""

SPACES_SECONDS = 5.0
"""How long a worker may go on with spaces that another one has changed."""


@dataclass(slots=True, eq=False)
class Part:
    """What one unit needs in one space."""

    space: Space
    plan: plan.Plan
    waiting: set[bytes]
    vectors: dict[bytes, Embedded] = field(default_factory=dict)
    has_waiting_text: bool = False
    is_staged: bool = False


@dataclass(slots=True, eq=False)
class Unit:
    """A claimed job on its way."""

    claim: Claim
    spec: Spec
    started: float
    parts: list[Part] = field(default_factory=list)
    is_planned: bool = False
    chunks: int = 0
    has_staged: bool = False
    is_gone: bool = False
    """The source row is gone, or out of the condition: what is stored of it goes too."""

    @property
    def is_whole(self) -> bool:
        return self.is_planned and not any(part.waiting for part in self.parts)


@dataclass(slots=True, eq=False)
class Batch:
    """Chunks of several units in one request."""

    pool: Pool
    requests: list[tuple[Unit, Part, Chunk]]
    future: Future[Outcomes]
    started: float


class Pipeline:
    """Claims units, embeds their chunks in batches across units, stores what came back."""

    def __init__(
        self,
        specs: Mapping[str, Spec],
        *,
        using: str,
        worker_id: int,
        settings: conf.Settings | None = None,
        wake: Callable[[], None] = lambda: None,
        inline: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.specs = specs
        self.using = using
        self.worker_id = worker_id
        self.settings = settings or conf.current()
        self.clock = clock
        self.units: dict[int, Unit] = {}
        self.embedded = 0
        self._wake = wake
        self._inline = inline
        self._pools: dict[int, Pool] = {}
        self._queues: dict[Pool, deque[tuple[Unit, Part, Chunk]]] = {}
        self._batches: list[Batch] = []
        self._unstaged: set[tuple[Unit, Part]] = set()
        self._spaces: dict[str, list[Space]] = {}
        self._spaces_read = float("-inf")
        self._endings: list[tuple[Claim, Callable[[Claim], str]]] = []
        self._claims = 0
        self._units_per_second = 0.0
        self._counted_from = clock()

    def step(self, *, claim: bool = True) -> bool:
        """Do one round, and tell whether anything moved.

        What came back from the providers is stored and its jobs are completed; then free
        capacity is filled with newly claimed units, whose chunks are sent off in batches.
        """
        moved = self._end_jobs()
        moved |= self._take_batches()
        moved |= self._store()
        self._stage()
        if claim:
            moved |= self._claim()
        moved |= self._send()
        self._store_text_ahead()
        return moved

    def heartbeat(self) -> None:
        """Renew every lease, and stop working on what was lost."""
        claims = [unit.claim for unit in self.units.values()]
        if claims:
            held = jobs.heartbeat(
                claims, lease_seconds=self.settings.lease_seconds, using=self.using
            )
            self._forget(held.lost)

    def release_unsent(self) -> None:
        """Give back what is not with a provider just now, with no attempt spent."""
        sent = {unit.claim.id for batch in self._batches for unit, _, _ in batch.requests}
        for unit in list(self.units.values()):
            if unit.claim.id not in sent and not unit.is_whole:
                self._give_back(unit)
        self._end_jobs()

    def release(self) -> None:
        """Give every job back, with no attempt spent."""
        for unit in list(self.units.values()):
            self._give_back(unit)
        self._end_jobs()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held."""
        return not self.units and not self._endings

    @property
    def has_room(self) -> bool:
        """Whether it would claim more if there were more."""
        return self._wanted() > 0

    def next_due_seconds(self) -> float | None:
        """Return when the next job that this pipeline could claim is due, from now."""
        up, _ = self._claimable()
        return jobs.next_due_seconds(up, using=self.using)

    @property
    def paused(self) -> dict[str, str]:
        """Provider alias -> why it is paused."""
        return {pool.provider.alias: pool.reason for pool in self._pools.values() if pool.is_down}

    def paused_seconds(self) -> float | None:
        """Return when the first paused provider is to be tried again, from now."""
        return min(
            (pool.paused_seconds for pool in self._pools.values() if pool.is_down), default=None
        )

    def close(self) -> None:
        """Let the pool threads end."""
        for pool in self._pools.values():
            pool.close()

    # Claim and plan.

    def _claim(self) -> bool:
        limit = self._wanted()
        if not limit:
            return False
        self._read_spaces()
        up, down = self._claimable()
        held = {"worker_id": self.worker_id, "lease_seconds": self.settings.lease_seconds}
        claims = []
        if not self.units:
            claims = jobs.claim_alone(up, using=self.using, **held)
        elif any(unit.claim.crashes for unit in self.units.values()) or jobs.suspect_due(
            up, using=self.using
        ):
            # What was held when a worker died is claimed alone: first let the others end.
            return False
        self._claims += 1
        if not claims:
            claims = jobs.claim(
                up,
                limit=limit,
                lowest_first=self._claims % 8 == 0,
                using=self.using,
                **held,
            )
        if not claims and down:
            # Their provider is paused, but their text can be found by full-text search.
            claims = jobs.claim(down, limit=limit, only_new=True, using=self.using, **held)
        now = self.clock()
        self.units.update(
            {claim.id: Unit(claim, self.specs[claim.spec], started=now) for claim in claims}
        )
        self._plan()
        return bool(claims)

    def _wanted(self) -> int:
        """Return how many units to claim: some seconds of work, so that others get theirs."""
        settings = self.settings
        round_of_batches = settings.batch_size * settings.concurrency
        queued = sum(len(queue) for queue in self._queues.values())
        if queued >= round_of_batches or len(self.units) >= 4 * settings.claim_limit:
            return 0
        some_seconds = int(self._units_per_second * 2)
        return min(settings.claim_limit, max(2 * round_of_batches, some_seconds))

    def _claimable(self) -> tuple[list[str], list[str]]:
        """Return the specs whose active provider is up, and those whose is down."""
        up, down = [], []
        for key in self.specs:
            pools = [self._pool(space) for space in self._spaces.get(key, [])[:1]]
            (down if any(pool.is_down and not pool.free for pool in pools) else up).append(key)
        return up, down

    def _plan(self) -> None:
        by_spec = defaultdict(list)
        for unit in self.units.values():
            if not unit.is_planned:
                by_spec[unit.spec].append(unit)
        for spec, units in by_spec.items():
            self._plan_spec(spec, units)

    def _plan_spec(self, spec: Spec, units: Sequence[Unit]) -> None:
        source_pks = [unit.claim.source_pk for unit in units]
        live = self._spaces[spec.key]
        loaded = load(spec, source_pks, using=self.using)
        stored = store.stored(spec, source_pks, [space.pk for space in live], using=self.using)
        staged = store.staged(spec, source_pks, using=self.using)
        for unit in units:
            source_pk = unit.claim.source_pk
            if loaded.is_locked:
                self._give_back(unit, delay_seconds=1.0)
            elif source_pk in loaded.errors:
                self._retry(unit, loaded.errors[source_pk])
            elif source_pk not in loaded.texts:
                unit.is_gone = True
            else:
                self._plan_unit(unit, loaded.texts[source_pk], live, stored, staged)
            unit.is_planned = True

    def _plan_unit(
        self,
        unit: Unit,
        text: str,
        live: Iterable[Space],
        stored: Mapping[store.UnitSpace, list[plan.StoredChunk]],
        staged: Mapping[store.UnitSpace, set[bytes]],
    ) -> None:
        chunks = unit.spec.chunker.split(text)
        unit.chunks = len(chunks)
        for space in live:
            where = (unit.claim.source_pk, space.pk)
            made = plan.make(
                chunks,
                unit.spec.text_digest(text),
                stored=stored.get(where, ()),
                staged=staged.get(where, ()),
            )
            part = Part(space, made, waiting={chunk.digest for chunk in made.embed})
            unit.parts.append(part)
            unit.has_staged |= where in staged
            self._queues[self._pool(space)].extend((unit, part, chunk) for chunk in made.embed)

    # Embed.

    def _send(self) -> bool:
        sent = False
        for pool, queue in self._queues.items():
            while queue and pool.free > 0:
                if requests := self._fill(pool, queue):
                    future = pool.submit([chunk.text for _, _, chunk in requests])
                    self._batches.append(Batch(pool, requests, future, self.clock()))
                    sent = True
            if queue and pool.paused_seconds:
                self._step_aside(pool)
        return sent

    def _fill(
        self, pool: Pool, queue: deque[tuple[Unit, Part, Chunk]]
    ) -> list[tuple[Unit, Part, Chunk]]:
        requests: list[tuple[Unit, Part, Chunk]] = []
        while queue and len(requests) < pool.provider.batch_size:
            unit, part, chunk = queue.popleft()
            if self._holds(unit) and chunk.digest in part.waiting:
                requests.append((unit, part, chunk))
        return requests

    def _step_aside(self, pool: Pool) -> None:
        """Give the units back that wait for a paused provider, their text stored."""
        waiting = {unit for unit, _, _ in self._queues[pool] if self._holds(unit)}
        self._queues[pool].clear()
        self._store_text(waiting)
        for unit in waiting:
            self._do_without(unit, pool)

    def _do_without(self, unit: Unit, pool: Pool) -> None:
        """Drop a paused provider's part: a space that is being built never delays the active one.

        The reconciler brings the unit back for it. A unit whose active space waits is given back.
        """
        if any(
            self._pool(part.space) is pool and part.space.state == "active" for part in unit.parts
        ):
            self._give_back(unit, delay_seconds=pool.paused_seconds, reason=pool.reason)
        else:
            unit.parts = [part for part in unit.parts if self._pool(part.space) is not pool]

    def _take_batches(self) -> bool:
        done = [batch for batch in self._batches if batch.future.done()]
        for batch in done:
            self._batches.remove(batch)
            self._take(batch)
        return bool(done)

    def _take(self, batch: Batch) -> None:
        batch.pool.take(batch.future)
        error = batch.future.exception()
        outcomes = (
            batch.future.result() if error is None else [_as_outcome(error)] * len(batch.requests)
        )
        for (unit, part, chunk), outcome in zip(batch.requests, outcomes, strict=True):
            if not self._holds(unit) or part not in unit.parts:
                continue
            if isinstance(outcome, Embedded):
                part.vectors[chunk.digest] = outcome
                part.waiting.discard(chunk.digest)
                if part.waiting:
                    self._unstaged.add((unit, part))
            elif isinstance(outcome, ProviderUnavailable):
                self._do_without(unit, batch.pool)
            elif isinstance(outcome, InputRefused):
                self._fail(unit, str(outcome))
            else:
                self._retry(unit, str(outcome))
        self._log(batch)

    def _log(self, batch: Batch) -> None:
        seconds = self.clock() - batch.started
        if batch.pool.is_down:
            logger.warning(
                "Provider %s is paused for %.1f s: %s",
                batch.pool.provider.alias,
                batch.pool.paused_seconds,
                batch.pool.reason,
            )
        else:
            logger.info(
                "Embedded %d chunks of %d rows in %.0f ms with %s",
                len(batch.requests),
                len({unit.claim.id for unit, _, _ in batch.requests}),
                seconds * 1000,
                batch.pool.provider,
            )

    # Store.

    def _store(self) -> bool:
        whole = [unit for unit in self.units.values() if unit.is_whole]
        return bool(whole) and self._store_units(whole)

    def _store_units(self, units: Sequence[Unit]) -> bool:
        """Store vectors and complete jobs, all of them in one short transaction."""
        try:
            with transaction.atomic(using=self.using):
                held = jobs.hold([unit.claim for unit in units], using=self.using)
                ours = [unit for unit in units if unit.claim.id in held.ours]
                self._write(ours)
                jobs.complete(
                    {unit.claim.id: unit.chunks for unit in ours},
                    keep_seconds=self.settings.keep_succeeded_seconds,
                    using=self.using,
                )
        except DatabaseError as error:
            if database.is_lost_connection(error):
                raise
            if len(units) > 1:
                # One unit's data may be at fault. It must not take the others along.
                return any([self._store_units([unit]) for unit in units])
            self._retry(units[0], f"{type(error).__name__}: {error}")
            return True
        # Those that an open writer has locked are tried again until free or gone.
        self._forget(held.ours | held.lost)
        self._count(len(held.ours))
        return bool(held.ours or held.lost)

    def _write(self, units: Sequence[Unit]) -> None:
        by_spec = defaultdict(list)
        for unit in units:
            by_spec[unit.spec].append(unit)
        for spec, of_spec in by_spec.items():
            gone = [unit.claim.source_pk for unit in of_spec if unit.is_gone]
            if gone:
                store.forget(spec, gone, using=self.using)
            store.apply(
                spec,
                [
                    _change(unit, part)
                    for unit in of_spec
                    for part in unit.parts
                    if not part.plan.is_fresh
                ],
                using=self.using,
            )
            staged = [
                unit.claim.source_pk
                for unit in of_spec
                if unit.has_staged or any(part.is_staged for part in unit.parts)
            ]
            if staged:
                store.unstage(spec, staged, using=self.using)

    def _stage(self) -> None:
        """Persist what batches brought for units that wait for further ones."""
        by_spec = defaultdict(list)
        for unit, part in self._unstaged:
            if self._holds(unit):
                by_spec[unit.spec].append((unit, part))
        for spec, parts in by_spec.items():
            with transaction.atomic(using=self.using):
                ours = self._hold_parts(parts)
                store.stage(spec, [_change(unit, part) for unit, part in ours], using=self.using)
            for _, part in ours:
                part.is_staged = True
        self._unstaged.clear()

    def _hold_parts(self, parts: Sequence[tuple[Unit, Part]]) -> list[tuple[Unit, Part]]:
        held = jobs.hold({unit.claim for unit, _ in parts}, using=self.using)
        return [(unit, part) for unit, part in parts if unit.claim.id in held.ours]

    def _store_text_ahead(self) -> None:
        now = self.clock()
        late = [unit for unit in self.units.values() if now - unit.started >= TEXT_AHEAD_SECONDS]
        self._store_text(late)

    def _store_text(self, units: Collection[Unit]) -> None:
        """Store the text of units that have no rows yet: full-text search finds them at once."""
        by_spec = defaultdict(list)
        for unit in units:
            for part in unit.parts:
                if part.plan.is_new and part.waiting and not part.has_waiting_text:
                    by_spec[unit.spec].append((unit, part))
        for spec, parts in by_spec.items():
            with transaction.atomic(using=self.using):
                ours = self._hold_parts(parts)
                store.apply_text(
                    spec,
                    [
                        store.Change(unit.claim.source_pk, part.space.pk, part.plan)
                        for unit, part in ours
                    ],
                    using=self.using,
                )
            for _, part in ours:
                part.has_waiting_text = True

    # End jobs otherwise.

    def _fail(self, unit: Unit, error: str) -> None:
        self._end(unit, lambda claim: jobs.fail(claim, error, using=self.using))

    def _retry(self, unit: Unit, error: str) -> None:
        backoff = self.settings.backoff_seconds * 2**unit.claim.attempts
        delay = min(backoff, 3600) * random.uniform(0.75, 1.25)
        self._end(
            unit,
            lambda claim: jobs.retry(
                claim,
                error,
                max_attempts=self.settings.max_attempts,
                delay_seconds=delay,
                using=self.using,
            ),
        )

    def _give_back(self, unit: Unit, *, delay_seconds: float = 0, reason: str = "") -> None:
        self._end(
            unit,
            lambda claim: jobs.release(
                claim, delay_seconds=delay_seconds, reason=reason, using=self.using
            ),
        )

    def _end(self, unit: Unit, ending: Callable[[Claim], str]) -> None:
        self._forget([unit.claim.id])
        self._endings.append((unit.claim, ending))

    def _end_jobs(self) -> bool:
        """Run the arrows that go one job a transaction. A busy one is tried again next time."""
        ended = 0
        for claim, ending in list(self._endings):
            if ending(claim) != "busy":
                self._endings.remove((claim, ending))
                ended += 1
        return ended > 0

    # Bookkeeping.

    def _holds(self, unit: Unit) -> bool:
        return self.units.get(unit.claim.id) is unit

    def _forget(self, job_ids: Iterable[int]) -> None:
        for job_id in job_ids:
            self.units.pop(job_id, None)

    def _count(self, units: int) -> None:
        self.embedded += units
        now = self.clock()
        elapsed = now - self._counted_from
        if elapsed >= 1.0:
            self._units_per_second = self.embedded / elapsed

    def _pool(self, space: Space) -> Pool:
        if space.pk not in self._pools:
            provider = spaces.provider_of(space)
            shared = [pool for pool in self._pools.values() if pool.provider is provider]
            pool = self._pools[space.pk] = (
                shared[0]
                if shared
                else Pool(
                    provider,
                    concurrency=self.settings.concurrency,
                    wake=self._wake,
                    inline=self._inline,
                    clock=self.clock,
                )
            )
            self._queues.setdefault(pool, deque())
        return self._pools[space.pk]

    def _read_spaces(self) -> None:
        if self.clock() - self._spaces_read >= SPACES_SECONDS:
            self._spaces = {
                key: spaces.live(spec, using=self.using) for key, spec in self.specs.items()
            }
            self._spaces_read = self.clock()


def _change(unit: Unit, part: Part) -> store.Change:
    return store.Change(
        unit.claim.source_pk, part.space.pk, part.plan, part.vectors, part.has_waiting_text
    )


def _as_outcome(error: BaseException) -> ProviderError:
    """Return what a whole batch's failure means for each of its texts."""
    if isinstance(error, ProviderError):
        return error
    return ProviderError(f"{type(error).__name__}: {error}")
