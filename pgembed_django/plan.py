"""Decide what to embed. Pure: no database, no network, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from pgembed_django.chunking import Chunk
from pgembed_django.text import digest

EMPTY = Chunk(position=0, start=0, end=0, text="", digest=digest(""))
"""The chunk of an empty text. It is stored without a vector, so that the row is not a gap."""


class StoredChunk(NamedTuple):
    """A chunk as stored in the generated table."""

    id: int
    position: int
    start: int
    end: int
    digest: bytes
    text_digest: bytes
    has_vector: bool

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to embed: it has a vector, or the text is empty."""
        return self.has_vector or self.start == self.end


class Plan(NamedTuple):
    """The changes to one unit's stored chunks in one space.

    ``embed`` has the chunks to send to the provider, one per new digest. ``insert`` has the chunks
    that need a row. Their vectors come from the provider, or from a row or a staged vector with
    the same digest. ``keep`` maps the ids of rows that stay but change to their new chunks.
    ``drop`` has the ids of the rows to delete.
    """

    text_digest: bytes
    embed: tuple[Chunk, ...]
    insert: tuple[Chunk, ...]
    keep: dict[int, Chunk]
    drop: tuple[int, ...]
    is_new: bool
    """The unit has no rows in this space yet: its text can be stored before its vectors."""

    @property
    def is_fresh(self) -> bool:
        """Whether the stored chunks already match the text."""
        return not (self.embed or self.insert or self.keep or self.drop)


def make(
    chunks: Sequence[Chunk],
    text_digest: bytes,
    *,
    stored: Iterable[StoredChunk],
    staged: Collection[bytes] = (),
) -> Plan:
    """Compare the chunks of a text with those stored in one space.

    ``staged`` has the digests of chunks whose vectors an earlier run has staged.
    """
    chunks = chunks or (EMPTY,)
    rows = {row.position: row for row in stored}
    reusable = {row.digest for row in rows.values() if row.has_vector} | set(staged)
    keep, insert, embed, kept = {}, [], {}, set()
    for chunk in chunks:
        row = rows.get(chunk.position)
        if row is not None and row.digest == chunk.digest and row.is_done:
            kept.add(row.id)
            if (row.start, row.end, row.text_digest) != (chunk.start, chunk.end, text_digest):
                keep[row.id] = chunk
        else:
            insert.append(chunk)
            if chunk.end > chunk.start and chunk.digest not in reusable:
                embed[chunk.digest] = chunk
    return Plan(
        text_digest=text_digest,
        embed=tuple(embed.values()),
        insert=tuple(insert),
        keep=keep,
        drop=tuple(row.id for row in rows.values() if row.id not in kept),
        is_new=not rows,
    )
