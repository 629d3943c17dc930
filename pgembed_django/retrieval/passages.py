"""Read the passages of ranked chunks, and find the query's words in them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db import DatabaseError

from pgembed_django import conf, database, faults, locales
from pgembed_django.retrieval import highlights, selects
from pgembed_django.retrieval.highlights import Marks
from pgembed_django.retrieval.targets import Target
from pgembed_django.retrieval.words import Words
from pgembed_django.specs import Spec

LONGEST_BEGINNING = 500
"""How many characters to show of a row whose best chunk has just been replaced."""


class Passage(NamedTuple):
    """A passage, its offsets in its row's text, and the marks in it."""

    text: str
    start: int
    end: int
    marks: Marks = ()


class _Stored(NamedTuple):
    """A chunk as ``selects.PASSAGES`` reads it."""

    id: int
    text: str | None
    """None: the spec does not store texts."""
    start: int
    end: int
    text_digest: bytes
    waits: bool
    """The chunk has no vector yet."""
    headline: str | None


def of(
    target: Target[Any],
    rows: Mapping[Any, Any],
    chunks: Mapping[Any, int],
    *,
    words: Words | None,
) -> dict[Any, Passage]:
    """Return the passage to show for each row, by its key.

    ``rows`` has the instances and ``chunks`` the ids of their best chunks, both by key. Leaves
    out a row whose chunk is of an older text if the spec hides stale rows.
    """
    spec = target.spec
    mark = _mark()
    stored = _stored(target, list(chunks.values()), mark=mark, words=words)
    found: dict[Any, Passage] = {}
    unmarked: dict[Any, Passage] = {}
    for key, row in rows.items():
        chunk = stored.get(chunks[key])
        if chunk is None:
            # A worker has replaced the chunk since. Still show the row: the start of its text.
            text = (_text_now(spec, row) or "")[:LONGEST_BEGINNING]
            unmarked[key] = Passage(text, 0, len(text))
        elif chunk.waits and spec.stale == "hide" and not _is_of_text(chunk, spec, row):
            continue
        elif chunk.text is None:
            text = (_text_now(spec, row) or "")[chunk.start : chunk.end]
            unmarked[key] = Passage(text, chunk.start, chunk.end)
        else:
            marks = highlights.marks_in(chunk.headline or "", passage=chunk.text, mark=mark)
            found[key] = Passage(chunk.text, chunk.start, chunk.end, marks)
    if unmarked:
        marked = _marks(target.using, [one.text for one in unmarked.values()], words=words)
        for (key, passage), marks in zip(unmarked.items(), marked, strict=True):
            found[key] = passage._replace(marks=marks)
    return found


def _is_of_text(chunk: _Stored, spec: Spec, row: Any) -> bool:
    """Return whether a chunk is of the row's present text."""
    now = _text_now(spec, row)
    return now is not None and spec.text_digest(now) == bytes(chunk.text_digest)


@locales.of_settings()
def _text_now(spec: Spec, row: Any) -> str | None:
    """Return the row's text, or None if its text method raises: the other rows are still shown."""
    try:
        return spec.text_of(row)
    except DatabaseError:
        raise  # it may have aborted the caller's transaction
    except BaseException as error:  # the user's method: its job reports it
        if faults.is_interruption(error):
            raise
        return None


def _stored(
    target: Target[Any], chunks: Sequence[int], *, mark: str, words: Words | None
) -> dict[int, _Stored]:
    """Return the chunks that are still there, by id."""
    rows = database.rows(
        target.using,
        selects.passages(target),
        language=conf.current().text_search_config,
        words=words.ranking if words else None,
        options=_options(mark),
        ids=chunks,
    )
    return {row[0]: _Stored(*row) for row in rows}


def _marks(using: str, passages: list[str], *, words: Words | None) -> list[Marks]:
    """Return the marks in passages whose text is not stored."""
    if not words:
        return [()] * len(passages)
    mark = _mark()
    headlines = database.rows(
        using,
        selects.HEADLINES,
        language=conf.current().text_search_config,
        words=words.ranking,
        passages=passages,
        options=_options(mark),
    )
    return [
        highlights.marks_in(headline, passage=passage, mark=mark)
        for passage, (headline,) in zip(passages, headlines, strict=True)
    ]


def _mark() -> str:
    # Random, so that no text contains it: whatever is between two marks is a matched word.
    return f"pgembed{secrets.token_hex(8)}"


def _options(mark: str) -> str:
    return f"HighlightAll=true, StartSel={mark}, StopSel={mark}"
