"""Read claimed units, cut them into chunks, and compare those with the stored ones."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from django.db import DatabaseError

from pgembed_django import database, faults, lengths, plan, sources, store
from pgembed_django.chunking import Chunk
from pgembed_django.embedding import reader
from pgembed_django.embedding.embedder import Embedder
from pgembed_django.embedding.live import Live
from pgembed_django.embedding.reader import Fitting
from pgembed_django.embedding.units import RELEASED_SECONDS, Part, Quarantine, Unit, Units, Wanted
from pgembed_django.faults import Fault
from pgembed_django.models import Space
from pgembed_django.queue.completing import Portion
from pgembed_django.specs import Spec

HELD_CHARACTERS = 2 * lengths.READ_BYTES
"""How much text is planned at once. The rest waits, unread, until some of it is stored."""


class Planner:
    """Plans what claimed units need, and queues new chunks to be embedded."""

    def __init__(
        self, *, holding: Units, quarantine: Quarantine, live: Live, embedder: Embedder
    ) -> None:
        self.holding = holding
        self.quarantine = quarantine
        self.live = live
        self.embedder = embedder
        self._units: deque[Unit] = deque()
        self._fitting = Fitting(holding=holding, quarantine=quarantine)
        # Answers of providers are looked at after each portion, however long the texts are.
        self._portion = Portion()
        self._canceled: Unit | None = None
        """The last unit that could not be read in time alone."""

    @property
    def has_more(self) -> bool:
        """Whether some claimed units are not read yet."""
        return bool(self._units)

    def add(self, units: Iterable[Unit]) -> None:
        """Take in claimed units."""
        self._units.extend(units)

    def step(self) -> bool:
        """Plan the next few units, at least a batch. Return whether there were any.

        Fewer if their texts are long, and none while enough text is held.
        """
        if not self._units or self._held() >= HELD_CHARACTERS:
            return False
        batch_sizes = [pool.provider.batch_size for pool in self.embedder.pools]
        few = list(islice(self._units, self._portion.wanted(max(batch_sizes, default=1))))
        started = time.perf_counter()
        try:
            few, room = self._fitting.choose(few)
            self._plan_by_spec(few, room=room)
        except sources.TooMuch:
            self._fitting.was_too_much()
            return self.step()
        except DatabaseError as error:
            if faults.of(error) is not Fault.TOO_SLOW:
                raise
            if len(few) > 1:
                self._portion.halve(len(few))
                raise
            if few[0] is not self._canceled:
                self._canceled = few[0]  # perhaps by a person: it is not yet to blame
                return self.step()
            self.holding.retry(few[0], f"{type(error).__name__}: {faults.said(error)}")
        for _ in few:  # only now: the database may have been lost before
            self._units.popleft()
        # Those whose texts there was no time to make.
        left = [unit for unit in few if unit in self.holding and not unit.is_planned]
        self._units.extendleft(reversed(left))
        self._portion.adapt(len(few) - len(left), seconds=time.perf_counter() - started)
        return bool(few)

    def look_again(self) -> None:
        """Take up specs whose tables are as declared now."""
        for spec in self.quarantine:
            if not self.live.of(spec):
                continue
            try:
                self._ask(spec, [])
            except database.Busy:
                continue
            except DatabaseError as error:
                if faults.of(error) in {Fault.OUTAGE, Fault.OURS}:
                    raise
                continue
            # Vectors that cannot be stored would be paid for again and again.
            if store.is_fit(spec, using=self.holding.using):
                self.quarantine.release(spec)

    def _held(self) -> int:
        return _characters(self.holding.by_id.values())

    def _plan_by_spec(self, units: Sequence[Unit], *, room: float) -> None:
        """Plan units whose texts fit into ``room`` together.

        Raises:
            sources.TooMuch: they did not fit. Some units may be planned.
        """
        for spec, of_spec in self.holding.unplanned(units).items():
            self._plan_or_release(spec, of_spec, room=room)
            room -= _characters(of_spec)

    def _plan_or_release(self, spec: Spec, units: Sequence[Unit], *, room: float) -> None:
        """Plan units, except those that the database does not let us read."""
        if spec in self.quarantine:
            self.quarantine.give_back(units)
            return
        try:
            self._plan(spec, units, room=room)
        except DatabaseError as error:
            match faults.of(error):
                case Fault.TOO_SLOW | Fault.OUTAGE | Fault.OURS:
                    raise
                case Fault.SCHEMA | Fault.PASSING:
                    self.quarantine.add(spec, error)
                    self.quarantine.give_back(units)
                case _ if len(units) == 1:
                    # A key of another type or a damaged value must not fail the others.
                    self.holding.retry(units[0], f"{type(error).__name__}: {faults.said(error)}")
                case _:
                    first, others = units[: len(units) // 2], units[len(units) // 2 :]
                    self._plan_or_release(spec, first, room=room)
                    self._plan_or_release(spec, others, room=room - _characters(first))

    def _release(self, units: Iterable[Unit]) -> None:
        for unit in units:
            self.holding.release(unit, delay_seconds=RELEASED_SECONDS)

    def _plan(self, spec: Spec, units: Sequence[Unit], *, room: float) -> None:
        live = self.live.of(spec)
        if not live:
            self._release(units)
            return
        try:
            source_pks = [unit.claim.source_pk for unit in units]
            loaded, stored = self._ask(spec, source_pks, room=room)
        except database.Busy:
            self._release(units)
            return
        self._fitting.note_made(spec, loaded.texts.values())
        chunks, errors = reader.split_each(spec, loaded.texts, using=self.holding.using)
        errors |= loaded.errors
        for unit in units:
            source_pk = unit.claim.source_pk
            if source_pk in loaded.left:
                continue
            unit.is_planned = True
            if source_pk in loaded.hindered:
                self.holding.put_off(unit, errors[source_pk])
            elif source_pk in errors:
                self.holding.retry(unit, errors[source_pk])
            elif source_pk not in chunks:
                unit.is_gone = True
                self.holding.look_at(unit)
            else:
                text_digest = spec.text_digest(loaded.texts[source_pk])
                unit.characters = len(loaded.texts[source_pk])
                self._plan_unit(unit, chunks[source_pk], text_digest, live, stored)

    def _ask(
        self, spec: Spec, source_pks: Sequence[str], *, room: float = math.inf
    ) -> tuple[sources.Loaded, store.Stored]:
        using = self.holding.using
        room -= len(source_pks) * self._fitting.made_length(spec)
        if room < 0:
            raise sources.TooMuch
        space_ids = [space.pk for space in self.live.of(spec)]
        with database.giving_way(using, pipelined=True):
            read_texts = self._fitting.reading(spec).ask(source_pks, room=room)
            # After the user's own query, which is planned as they would expect. The stored
            # chunks may be read later than the text: the job is ours.
            database.keep_plans(using)
            read_stored = store.ask_stored(spec, source_pks, space_ids, using=using)
        return read_texts(), read_stored()

    def _plan_unit(
        self,
        unit: Unit,
        chunks: Sequence[Chunk],
        text_digest: bytes,
        live: Sequence[Space],
        stored: store.Stored,
    ) -> None:
        unit.chunks = len(chunks)
        unit.plan_for(live)
        for space in live:
            where = (unit.claim.source_pk, space.pk)
            staged = stored.staged.get(where, ())
            made = plan.make(
                chunks, text_digest, stored=stored.chunks.get(where, ()), staged=staged
            )
            part = Part(space, made, waiting={chunk.digest for chunk in made.embed})
            unit.parts.append(part)
            unit.has_staged |= bool(staged)
            self.embedder.enqueue(space, (Wanted(unit, part, chunk) for chunk in made.embed))
        self.holding.look_at(unit)


def _characters(units: Iterable[Unit]) -> int:
    return sum(unit.characters for unit in units)
