"""Compare claimed units with what is stored, and queue the chunks that are new."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import index
from typing import Any, NamedTuple

from django.db import DatabaseError

from pgembed_django import sources, store
from pgembed_django.chunking import Chunk, Chunker
from pgembed_django.core import database, faults
from pgembed_django.core.adapting import AdaptiveSize, halves, isolate
from pgembed_django.core.faults import Fault
from pgembed_django.core.text import digest
from pgembed_django.core.user_code import Failed, UserCode
from pgembed_django.declaration.specs import Spec
from pgembed_django.embedding.embedder import Embedder
from pgembed_django.embedding.units import Live, Part, State, Unit, Units, Wanted, by_spec
from pgembed_django.embedding.writer import Writer
from pgembed_django.models import Space
from pgembed_django.providers.errors import without_texts
from pgembed_django.store import Stored, StoredChunk

HELD_CHARACTERS = 2 * sources.READ_BYTES
"""How much text is planned at once. The rest waits, unread, until some of it is stored."""

UNASKED = 4
"""Up to this many rows are read without asking how long they are."""

EMPTY = Chunk(position=0, start=0, end=0, text="", digest=digest(""))
"""The chunk of an empty text. It is stored without a vector, so that the row is not a gap."""


class Plan(NamedTuple):
    """The changes to one unit's stored chunks in one space.

    ``embed`` has the chunks to send to the provider, one per new digest. ``insert`` has the chunks
    that need a row. Their vectors come from the provider, or from a row or a staged vector with
    the same digest. ``drop`` has the ids of the rows to delete.
    """

    text_digest: bytes
    embed: tuple[Chunk, ...]
    insert: tuple[Chunk, ...]
    drop: tuple[int, ...]
    is_new: bool
    """The unit has no rows in this space yet: its text can be stored before its vectors."""
    language: str | None
    """The full-text configuration for its words. None: they are not stored."""

    @property
    def is_fresh(self) -> bool:
        """Whether the stored chunks already match the text."""
        return not (self.insert or self.drop)


def make_plan(
    chunks: Sequence[Chunk],
    text_digest: bytes,
    *,
    stored: Iterable[StoredChunk],
    staged: Collection[bytes] = (),
    language: str | None = None,
) -> Plan:
    """Compare the chunks of a text with those stored in one space. Pure.

    ``staged`` has the digests of chunks whose vectors an earlier run has staged. ``language`` is
    as in ``Plan``: chunks with words of another one are inserted again, with the vectors they had.
    """
    rows = {row.position: row for row in stored}
    reusable = {row.digest for row in rows.values() if row.has_vector} | set(staged)
    insert, embed, kept = [], {}, set()
    for chunk in chunks or (EMPTY,):
        row = rows.get(chunk.position)
        if (
            row is not None
            and row.is_done
            and (row.digest, row.start, row.end) == (chunk.digest, chunk.start, chunk.end)
            and (row.text_digest, row.language) == (text_digest, language)
        ):
            kept.add(row.id)
            continue
        insert.append(chunk)
        if chunk.end > chunk.start and chunk.digest not in reusable:
            embed[chunk.digest] = chunk
    return Plan(
        text_digest=text_digest,
        embed=tuple(embed.values()),
        insert=tuple(insert),
        drop=tuple(row.id for row in rows.values() if row.id not in kept),
        is_new=not rows,
        language=language,
    )


class Planner:
    """Plans what claimed units need, and queues new chunks to be embedded."""

    def __init__(self, *, units: Units, live: Live, embedder: Embedder, writer: Writer) -> None:
        self.units = units
        self.live = live
        self.embedder = embedder
        self.writer = writer
        self.unread: deque[Unit] = deque()
        """Claimed units that are not read yet."""
        self._readings: dict[Spec, sources.Reading] = {}
        # Answers of providers are looked at after each step, however long the texts are.
        self._size = AdaptiveSize()
        self._room = 0.0
        """How many bytes of text this step may still read."""
        self._asked: Sequence[Unit] = ()
        """The units that were read last."""
        self._canceled: Unit | None = None
        """The last unit that could not be read in time alone."""

    def step(self) -> bool:
        """Plan the next few units, at least a batch. Return whether there were any.

        Fewer if their texts are long, and none while enough text is held.
        """
        held = sum(unit.characters for unit in self.units.by_id.values())
        if not self.unread or held >= HELD_CHARACTERS:
            return False
        batch_sizes = [pool.provider.batch_size for pool in self.embedder.pools]
        # A whole batch of each provider, unless that many took too long.
        least = 1 if self._size.has_failed else max(batch_sizes, default=1)
        few = list(islice(self.unread, max(self._size.size, least)))
        started = time.perf_counter()
        self._room = sources.READ_BYTES
        by_id = self.units.by_id
        unread = [
            unit for unit in few if unit.state is State.UNREAD and by_id.get(unit.claim.id) is unit
        ]
        for spec, of_spec in by_spec(unread).items():
            if spec in self.units.quarantined:
                self.units.give_back(of_spec)
            else:
                isolate(partial(self._attempt, spec, asks_length=len(few) > UNASKED), of_spec)
        for _ in few:  # only now: the database may have been lost before
            self.unread.popleft()
        # Those whose texts there was no time or room to make.
        left = [unit for unit in few if unit in self.units and unit.state is State.UNREAD]
        self.unread.extendleft(reversed(left))
        self._size.took(time.perf_counter() - started, len(few) - len(left))
        return bool(few)

    def look_again(self) -> None:
        """Take up specs whose tables are as declared now."""
        for spec in list(self.units.quarantined):
            live = self.live.spaces.get(spec.key, ())
            if not live:
                continue
            try:
                self._ask(spec, [], live, asks_length=False)
            except database.Busy:
                continue
            except DatabaseError as error:
                if faults.of(error) in {Fault.OUTAGE, Fault.OURS}:
                    raise
                continue
            # Vectors that cannot be stored would be paid for again and again.
            if store.is_fit(spec, using=self.units.using):
                self.units.resume(spec)

    def _attempt(
        self, spec: Spec, units: Sequence[Unit], *, asks_length: bool
    ) -> list[Sequence[Unit]]:
        """Plan units. Returns the groups to plan instead, if the database does not let us."""
        self._asked = units
        try:
            self._plan(spec, units, asks_length=asks_length)
        except database.Busy:
            self.units.give_back(self._asked)
        except DatabaseError as error:
            match faults.of(error):
                case Fault.OUTAGE | Fault.OURS:
                    raise
                case Fault.TOO_SLOW if len(self._asked) > 1:
                    self._size.failed(len(self._asked))
                    raise
                case Fault.TOO_SLOW if self._asked and self._asked[0] is not self._canceled:
                    self._canceled = self._asked[0]  # perhaps by a person: it is not yet to blame
                    return [self._asked]
                case Fault.SCHEMA | Fault.PASSING:
                    self.units.quarantine(spec, error)
                    self.units.give_back(units)
                case _ if len(self._asked) != 1:
                    # A key of another type or a damaged value must not fail the others.
                    return halves(self._asked)
                case _:
                    self.units.retry(self._asked[0], error)
        return []

    def _plan(self, spec: Spec, units: Sequence[Unit], *, asks_length: bool) -> None:
        live = self.live.spaces.get(spec.key, ())
        if not live:
            self.units.give_back(units)
            return
        loaded, stored, languages = self._ask(spec, units, live, asks_length=asks_length)
        chunks, errors = split_each(spec, loaded.texts, using=self.units.using)
        errors |= loaded.errors
        for unit in self._asked:
            source_pk = unit.claim.source_pk
            if source_pk in loaded.left:
                continue
            if source_pk in loaded.hindered:
                self.units.held.put_off(unit.claim, errors[source_pk])
            elif source_pk in errors:
                self.units.held.retry(unit.claim, errors[source_pk])
            elif source_pk not in chunks:
                unit.state = State.GONE
                self.units.settle(unit)
            else:
                text = loaded.texts[source_pk]
                unit.characters = len(text)
                self._room -= len(text)
                language = languages.get(source_pk)
                digest = spec.text_digest(text)
                self._plan_unit(unit, chunks[source_pk], digest, language, live, stored)

    def _ask(
        self, spec: Spec, units: Sequence[Unit], live: Sequence[Space], *, asks_length: bool
    ) -> tuple[sources.Loaded, Stored, Mapping[str, str | None]]:
        """Read the first units whose texts there is room for, their stored chunks and languages."""
        using = self.units.using
        if spec not in self._readings:
            self._readings[spec] = sources.Reading(spec, using=using)
        reading = self._readings[spec]
        source_pks: Sequence[str] = [unit.claim.source_pk for unit in units]
        with database.giving_way(using, pipelined=True):
            if asks_length:
                is_first = self._room == sources.READ_BYTES
                fitting = reading.fitting(source_pks, room=self._room)
                source_pks = fitting or source_pks[: int(is_first)]
                self._asked = units[: len(source_pks)]
            read_texts = reading.ask(source_pks)
            # After the user's own query, which is planned as they would expect. The stored
            # chunks may be read later than the text: the job is ours.
            database.keep_plans(using)
            space_ids = [space.pk for space in live]
            read_stored = store.ask_stored(spec, source_pks, space_ids, using=using)
        return read_texts(), read_stored(), sources.languages(spec, source_pks, using=using)

    def _plan_unit(
        self,
        unit: Unit,
        chunks: Sequence[Chunk],
        text_digest: bytes,
        language: str | None,
        live: Sequence[Space],
        stored: Stored,
    ) -> None:
        unit.state = State.PLANNED
        unit.chunks = len(chunks)
        unit.planned_spaces = {(space.pk, space.retired_at) for space in live}
        for space in live:
            where = (unit.claim.source_pk, space.pk)
            staged = stored.staged.get(where, ())
            unit.has_staged |= bool(staged)
            plan = make_plan(
                chunks,
                text_digest,
                stored=stored.chunks.get(where, ()),
                staged=staged,
                language=language,
            )
            waiting = {chunk.digest for chunk in plan.embed}
            part = Part(unit.claim.source_pk, space, plan, waiting)
            unit.parts.append(part)
            if plan.embed:
                pool = self.embedder.pool(space)
                pool.queue.extend([Wanted(unit, part, chunk) for chunk in plan.embed])
        self.writer.watch(unit)
        self.units.settle(unit)


def split_each(
    spec: Spec, texts: Mapping[str, str], *, using: str
) -> tuple[dict[str, list[Chunk]], dict[str, str]]:
    """Return the chunks of each text, and the errors of texts that cannot be cut, by source_pk."""
    chunks, errors = {}, {}
    is_ours = type(spec.chunker) is Chunker and spec.chunker.count is None
    code = UserCode(using=using, only_values=is_ours)
    with code.watching():
        for source_pk, text in texts.items():
            cut = partial(split, spec.chunker, text)
            try:
                chunks[source_pk] = code.call(cut, spec=spec.key, source_pk=source_pk)
            except Failed as error:
                errors[source_pk] = without_texts(str(error), [text])
    return chunks, errors


def split(chunker: Chunker, text: str) -> list[Chunk]:
    """Return the chunks of a text, in order.

    Raises:
        ValueError: a subclass returned something else. It would be stored with others.
    """
    chunks = chunker.split(text)
    return chunks if type(chunker) is Chunker else _proven(chunks, chunker, text)


def _proven(chunks: Iterable[Any], chunker: Chunker, text: str) -> list[Chunk]:
    proven = []
    for position, chunk in enumerate(chunks):
        is_of_text = (
            isinstance(chunk, Chunk)
            and position < len(text)  # or an endless generator would never end
            and 0 <= index(chunk.start) < index(chunk.end) <= len(text)
            and chunk.text == text[chunk.start : chunk.end]
        )
        if not is_of_text:
            raise ValueError(
                f"{type(chunker).__name__}.split() returned something at {position} that is not "
                "a Chunk with the text from its start to its end."
            )
        start, end = index(chunk.start), index(chunk.end)
        proven.append(Chunk(position, start, end, text[start:end], digest(text[start:end])))
    return proven
