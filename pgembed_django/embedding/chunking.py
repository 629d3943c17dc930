"""Cut texts, and take nothing on trust from a user's own chunker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from operator import index
from typing import Any

from pgembed_django.chunking import Chunk, Chunker
from pgembed_django.providers.errors import without_texts
from pgembed_django.specs import Spec
from pgembed_django.text import digest
from pgembed_django.user_code import Failed, UserCode


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
