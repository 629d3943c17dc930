"""Claim due units, some seconds of work ahead, and plan what each needs."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice

from pgembed_django import events, jobs, plan, spaces, store
from pgembed_django.chunkers import Chunk
from pgembed_django.jobs import Claim
from pgembed_django.models import Space
from pgembed_django.pipeline.embedding import Embedding
from pgembed_django.pipeline.holding import Holding
from pgembed_django.pipeline.storing import Storing
from pgembed_django.pipeline.units import Part, Request, Unit
from pgembed_django.sources import load
from pgembed_django.specs import Spec

SPACES_SECONDS = 5.0
"""How long a worker may go on with spaces that another one has changed."""

LOWEST_LANE_EVERY = 8
"""One claim in so many begins with the lowest lane, or a swap under load never ends."""

SPECIAL_EVERY = 8
"""One claim in so many looks for jobs that go alone first; the others, where they find nothing."""

AHEAD_SECONDS = 0.4
"""How much work is claimed ahead: enough for the provider, and the rest is for the others.

Less than ``MAX_TEXT_AHEAD_SECONDS``, or what is claimed would have to be written twice.
"""


PLANNED_AT_ONCE = 128
"""So many units are read and cut before the providers' answers are looked at again."""


class Claiming:
    """Fills the free capacity of ``embedding`` with claimed and planned units."""

    def __init__(
        self,
        specs: Mapping[str, Spec],
        *,
        holding: Holding,
        embedding: Embedding,
        storing: Storing,
        worker_id: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.specs = specs
        self.holding = holding
        self.embedding = embedding
        self.storing = storing
        self.worker_id = worker_id
        self.units_per_second = 0.0
        self.has_more = False
        """Whether the last claim took as many as it wanted: others could help."""
        self._clock = clock
        self._claims = 0
        self._is_suspects_turn = False
        self._had_special = False
        self._unplanned: deque[Unit] = deque()
        self._spaces: dict[str, list[Space]] = {}
        self._spaces_read = float("-inf")
        self._paused_specs: Collection[str] = ()

    @property
    def wanted(self) -> int:
        """How many units to claim now: some seconds of work."""
        settings = self.holding.settings
        round_of_batches = settings.batch_size * settings.concurrency
        if self.embedding.queued >= round_of_batches or self.storing.is_behind:
            return 0
        if any(pool.is_down for pool in self.embedding.pools):
            return settings.batch_size  # enough for the first one after an outage
        some_seconds = int(self.units_per_second * AHEAD_SECONDS)
        return min(settings.claim_limit, max(2 * round_of_batches, some_seconds))

    @property
    def has_unplanned(self) -> bool:
        """Whether units were claimed that have yet to be read."""
        return bool(self._unplanned)

    def claim(self) -> bool:
        """Claim where nothing is left to plan, plan some, and tell whether there was any."""
        limit = 0 if self._unplanned else self.wanted
        if limit:
            now = self._clock()
            self.embedding.look_at_quotas()
            started = time.perf_counter()
            claims = self.take(limit)
            if claims:
                milliseconds = (time.perf_counter() - started) * 1000
                events.tell(
                    events.JOBS_CLAIMED,
                    about=claims,
                    count=len(claims),
                    milliseconds=milliseconds,
                )
            self.has_more = len(claims) >= limit
            units = [Unit(claim, self.specs[claim.spec], now) for claim in claims]
            self.holding.add(units)
            self._unplanned.extend(units)
        return self._plan_some()

    def next_due_seconds(self) -> float | None:
        """Return when the next job that could be claimed is due, from now."""
        up, _ = self._reachable()
        return jobs.next_due_seconds(up, using=self.holding.using)

    def take(self, limit: int) -> list[Claim]:
        """Start due jobs: one that has to go alone, or up to ``limit`` others."""
        self._read_spaces()
        up, down = self._reachable()
        using, lease = self.holding.using, self.holding.settings.lease_seconds
        held = list(self.holding.units.values())
        if any(unit.claim.crashes for unit in held):
            return []
        if self._had_special or self._claims % SPECIAL_EVERY == 0:
            special = self._claim_special(up, held)
            if special is not None:
                return special
        self._claims += 1
        claims = jobs.claim(
            up,
            limit=limit,
            worker_id=self.worker_id,
            lease_seconds=lease,
            lowest_first=self._claims % LOWEST_LANE_EVERY == 0,
            using=using,
        )
        if not claims and down:
            # Their provider is paused, but full-text search can have their text.
            claims = jobs.claim(
                down,
                limit=limit,
                worker_id=self.worker_id,
                lease_seconds=lease,
                only_new=True,
                using=using,
            )
        return claims or self._claim_special(up, held) or []

    def _claim_special(self, specs: list[str], held: list[Unit]) -> list[Claim] | None:
        """Claim a job that has to go alone. None: there is none; empty: it is still waited for."""
        using, lease = self.holding.using, self.holding.settings.lease_seconds
        due = jobs.special_due(specs, using=using)
        # What was held when a worker died is claimed alone, by turns with the others: there
        # may be hundreds of such jobs, and writes are not to wait for all of them.
        self._is_suspects_turn = not self._is_suspects_turn
        self._had_special = True
        if self._is_suspects_turn and due.suspect:
            if held:
                self._is_suspects_turn = False  # still theirs, once the others have ended
                return []
            alone = jobs.claim_alone(
                specs, worker_id=self.worker_id, lease_seconds=lease, using=using
            )
            if alone:
                return alone
        doubtful = []
        if due.doubtful:
            doubtful = jobs.claim_doubtful(
                specs, worker_id=self.worker_id, lease_seconds=lease, using=using
            )
        self._had_special = bool(doubtful)
        return doubtful or None

    def _reachable(self) -> tuple[list[str], list[str]]:
        """Return the specs whose active provider can be asked now, and the others.

        Those that a person has paused are in neither.
        """
        up: list[str] = []
        down: list[str] = []
        for key in self.specs:
            if key in self._paused_specs:
                continue
            active = self._spaces.get(key, [])[:1]
            is_down = any(self.embedding.pool(space).is_waiting for space in active)
            (down if is_down else up).append(key)
        return up, down

    def _plan_some(self) -> bool:
        """Plan the next few units, and tell whether there were any."""
        batch_sizes = [pool.provider.batch_size for pool in self.embedding.pools]
        few = list(islice(self._unplanned, max([PLANNED_AT_ONCE, *batch_sizes])))
        by_spec = defaultdict(list)
        for unit in few:
            if unit in self.holding and not unit.is_planned:
                by_spec[unit.spec].append(unit)
        for spec, units in by_spec.items():
            self._plan(spec, units)
        for _ in few:  # only now: the database may have been lost meanwhile
            self._unplanned.popleft()
        return bool(few)

    def _plan(self, spec: Spec, units: Sequence[Unit]) -> None:
        using = self.holding.using
        source_pks = [unit.claim.source_pk for unit in units]
        live = self._spaces[spec.key]
        loaded = load(spec, source_pks, using=using)
        stored = store.stored(spec, source_pks, [space.pk for space in live], using=using)
        for unit in units:
            unit.is_planned = True
            source_pk = unit.claim.source_pk
            if loaded.is_locked or not live:
                self.holding.give_back(unit, delay_seconds=1.0)
            elif source_pk in loaded.errors:
                self.holding.retry(unit, loaded.errors[source_pk])
            elif source_pk not in loaded.texts:
                unit.is_gone = True
                self.holding.look_at(unit)
            else:
                try:
                    chunks = spec.chunker.split(loaded.texts[source_pk])
                except Exception as error:  # noqa: BLE001 - the user's chunker: its job is settled
                    self.holding.retry(unit, f"{type(error).__name__}: {error}")
                    continue
                text_digest = spec.text_digest(loaded.texts[source_pk])
                self._plan_unit(unit, chunks, text_digest, live, stored)

    def _plan_unit(
        self,
        unit: Unit,
        chunks: Sequence[Chunk],
        text_digest: bytes,
        live: Sequence[Space],
        stored: store.Stored,
    ) -> None:
        unit.chunks = len(chunks)
        unit.planned_spaces = {space.pk for space in live}
        for space in live:
            where = (unit.claim.source_pk, space.pk)
            staged = stored.staged.get(where, ())
            made = plan.make(
                chunks, text_digest, stored=stored.chunks.get(where, ()), staged=staged
            )
            part = Part(space, made, waiting={chunk.digest for chunk in made.embed})
            unit.parts.append(part)
            unit.has_staged |= bool(staged)
            self.embedding.enqueue(space, (Request(unit, part, chunk) for chunk in made.embed))
        self.holding.look_at(unit)

    def _read_spaces(self) -> None:
        if self.holding.has_old_spaces or self._clock() - self._spaces_read >= SPACES_SECONDS:
            using = self.holding.using
            self._spaces = {key: spaces.live(spec, using=using) for key, spec in self.specs.items()}
            paused = jobs.paused(using=using)
            self._paused_specs = paused.specs
            for space in (space for live in self._spaces.values() for space in live):
                self.embedding.pool(space).paused_by = paused.providers.get(space.provider)
            self._spaces_read = self._clock()
            self.holding.has_old_spaces = False
