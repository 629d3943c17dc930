"""Choose how many units to read at once, and cut their texts into chunks.

Nothing is taken on trust from a user's own chunker.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import index
from typing import Any

from django.db import DatabaseError

from pgembed_django import database, faults, lengths, sources
from pgembed_django.chunking import Chunk, Chunker
from pgembed_django.embedding.units import Quarantine, Unit, Units
from pgembed_django.faults import Fault
from pgembed_django.providers.errors import without_texts
from pgembed_django.specs import Spec
from pgembed_django.text import digest
from pgembed_django.user_code import Failed, UserCode

UNASKED = 4
"""Up to this many rows are read without asking how long they are."""


class Fitting:
    """Chooses units whose texts can be read together.

    Lengths are asked for only if the last texts were too long to be read at once.
    """

    def __init__(self, *, holding: Units, quarantine: Quarantine) -> None:
        self.holding = holding
        self.quarantine = quarantine
        self._asks_lengths = False
        self._readings: dict[Spec, sources.Reading] = {}
        self._made_lengths: dict[Spec, float] = {}
        """The mean length of the last texts a text method made: rows do not tell it."""

    def reading(self, spec: Spec) -> sources.Reading:
        """Return the reading of a spec's units."""
        if spec not in self._readings:
            self._readings[spec] = sources.Reading(spec, using=self.holding.using)
        return self._readings[spec]

    def choose(self, units: list[Unit]) -> tuple[list[Unit], float]:
        """Return the first of them, at least one, and how much room their texts have."""
        if not self._asks_lengths:
            return units, lengths.READ_BYTES if len(units) > UNASKED else math.inf
        fitting = self._known_to_fit(units)
        self._asks_lengths = len(fitting) < len(units)
        return fitting, math.inf

    def was_too_much(self) -> None:
        """Ask for lengths from now on: the last texts were too long."""
        self._asks_lengths = True

    def made_length(self, spec: Spec) -> float:
        """Return the approximate length of texts made by the spec's method. Zero: no method."""
        return self._made_lengths.get(spec, lengths.READ_BYTES / 16) if spec.text else 0

    def note_made(self, spec: Spec, texts: Collection[str]) -> None:
        """Learn from the last texts how long the next may be."""
        if spec.text and texts:
            self._made_lengths[spec] = sum(map(len, texts)) / len(texts)

    def _known_to_fit(self, units: list[Unit]) -> list[Unit]:
        """Return the first of them whose texts can be read at once: at least one."""
        by_unit: dict[Unit, float] = {}
        for spec, of_spec in self.holding.unplanned(units).items():
            stored = self._stored_lengths(spec, [unit.claim.source_pk for unit in of_spec])
            made = self.made_length(spec)
            for unit in of_spec:
                by_unit[unit] = max(stored.get(unit.claim.source_pk, 0), made)
        total = 0.0
        for number, unit in enumerate(units):
            total += by_unit.get(unit, unit.characters)
            if total > lengths.READ_BYTES:
                return units[: max(number, 1)]
        return units

    def _stored_lengths(self, spec: Spec, source_pks: Sequence[str]) -> Mapping[str, int]:
        if spec in self.quarantine:
            return {}
        try:
            with database.giving_way(self.holding.using, pipelined=True):
                return self.reading(spec).lengths(source_pks)
        except database.Busy:
            return {}
        except DatabaseError as error:
            if faults.of(error) is Fault.TOO_SLOW or faults.is_lost_connection(error):
                raise
            return {}  # reading them will find what is wrong


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
        if not isinstance(chunk, Chunk):
            raise _wrong(chunker, f"{type(chunk).__name__} at {position}, which is no Chunk")
        start, end = index(chunk.start), index(chunk.end)
        if not 0 <= start < end <= len(text) or chunk.text != text[start:end]:
            raise _wrong(chunker, f"a chunk at {position} that is not the text from start to end")
        if position >= len(text):
            raise _wrong(chunker, "more chunks than the text has characters")
        proven.append(Chunk(position, start, end, text[start:end], digest(text[start:end])))
    return proven


def _wrong(chunker: Chunker, what: str) -> ValueError:
    return ValueError(f"{type(chunker).__name__}.split() returned {what}.")
