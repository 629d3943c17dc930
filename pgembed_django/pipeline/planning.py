"""Read claimed units, cut them into chunks, and compare these with what is stored."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from django.db import DatabaseError

from pgembed_django import database, plan, sources, store
from pgembed_django.chunkers import Chunk
from pgembed_django.models import Space
from pgembed_django.pipeline.embedding import Embedding
from pgembed_django.pipeline.holding import Holding
from pgembed_django.pipeline.slices import Slices
from pgembed_django.pipeline.units import Part, Request, Unit
from pgembed_django.specs import Spec


class Planning:
    """Plans what claimed units need, and queues what is new to be embedded."""

    def __init__(self, *, holding: Holding, embedding: Embedding) -> None:
        self.holding = holding
        self.embedding = embedding
        self.live: Mapping[str, Sequence[Space]] = {}
        """The spaces of each spec that its units are planned for."""
        self._units: deque[Unit] = deque()
        self._readings: dict[Spec, sources.Reading] = {}
        # The providers' answers are looked at again after each, whatever the texts' lengths.
        self._slices = Slices()

    @property
    def has_more(self) -> bool:
        """Whether units were claimed that have yet to be read."""
        return bool(self._units)

    def add(self, units: Iterable[Unit]) -> None:
        """Take claimed units in."""
        self._units.extend(units)

    def step(self) -> bool:
        """Plan the next few units, at least a batch, and tell whether there were any."""
        batch_sizes = [pool.provider.batch_size for pool in self.embedding.pools]
        few = list(islice(self._units, self._slices.wanted(max(batch_sizes, default=1))))
        started = time.perf_counter()
        by_spec = defaultdict(list)
        for unit in few:
            if unit in self.holding and not unit.is_planned:
                by_spec[unit.spec].append(unit)
        try:
            for spec, units in by_spec.items():
                self._plan(spec, units)
        except DatabaseError as error:
            if not database.is_canceled(error):
                raise
            if len(few) > 1:
                self._slices.halve(len(few))
                raise
            self.holding.retry(few[0], f"{type(error).__name__}: {error}")
        for _ in few:  # only now: the database may have been lost meanwhile
            self._units.popleft()
        self._slices.adapt(len(few), seconds=time.perf_counter() - started)
        return bool(few)

    def _plan(self, spec: Spec, units: Sequence[Unit]) -> None:
        using = self.holding.using
        source_pks = [unit.claim.source_pk for unit in units]
        live = self.live[spec.key]
        space_ids = [space.pk for space in live]
        try:
            with database.giving_way(using, in_one_go=True):
                stored_ahead = store.stored_ahead(spec, source_pks, space_ids, using=using)
                read_ahead = self._reading(spec).ahead(source_pks)
            loaded = read_ahead()
        except database.Busy:
            loaded = None
        if loaded is None or not live:
            for unit in units:
                unit.is_planned = True
                self.holding.give_back(unit, delay_seconds=1.0)
            return
        stored = stored_ahead()
        for unit in units:
            unit.is_planned = True
            source_pk = unit.claim.source_pk
            if source_pk in loaded.errors:
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

    def _reading(self, spec: Spec) -> sources.Reading:
        if spec not in self._readings:
            self._readings[spec] = sources.Reading(spec, using=self.holding.using)
        return self._readings[spec]

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
