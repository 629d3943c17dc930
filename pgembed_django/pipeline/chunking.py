"""Cut a text, and take nothing on trust from a user's own chunker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pgembed_django.chunkers import Chunk, Chunker
from pgembed_django.text import digest


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
        start, end = chunk.start, chunk.end
        if not 0 <= start < end <= len(text) or chunk.text != text[start:end]:
            raise _wrong(chunker, f"a chunk at {position} that is not the text from start to end")
        proven.append(Chunk(position, start, end, chunk.text, digest(chunk.text)))
    return proven


def _wrong(chunker: Chunker, what: str) -> ValueError:
    return ValueError(f"{type(chunker).__name__}.split() returned {what}.")
