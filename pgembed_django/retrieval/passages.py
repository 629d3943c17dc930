"""Read the passages of ranked chunks, and find the query's words in them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db import DatabaseError

from pgembed_django import conf, database, locales
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
    marks: Marks


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
    stored = _stored(target, list(chunks.values()), mark=(mark := _mark()), words=words)
    found: dict[Any, Passage] = {}
    cut: dict[Any, tuple[str, int, int]] = {}
    for key, row in rows.items():
        if chunks[key] not in stored:
            # A worker has replaced the chunk since. Still show the row: the start of its text.
            text = (_text_now(spec, row) or "")[:LONGEST_BEGINNING]
            cut[key] = text, 0, len(text)
            continue
        text, start, end, digest, waits, headline = stored[chunks[key]]
        if waits and spec.stale == "hide":
            now = _text_now(spec, row)
            if now is None or spec.text_digest(now) != bytes(digest):
                continue
        if text is None:
            cut[key] = (_text_now(spec, row) or "")[start:end], start, end
        else:
            marks = highlights.marks_in(headline or "", passage=text, mark=mark)
            found[key] = Passage(text, start, end, marks)
    if cut:
        marked = _marks(target.using, [text for text, _, _ in cut.values()], words=words)
        for key, marks in zip(cut, marked, strict=True):
            found[key] = Passage(*cut[key], marks)
    return found


@locales.of_settings()
def _text_now(spec: Spec, row: Any) -> str | None:
    """Return the row's text, or None if its text method raises: the other rows are still shown."""
    try:
        return spec.text_of(row)
    except DatabaseError:
        raise  # it may have aborted the caller's transaction
    except Exception:  # noqa: BLE001 - the user's method: its job reports it
        return None


def _stored(
    target: Target[Any], chunks: Sequence[int], *, mark: str, words: Words | None
) -> dict[int, tuple[Any, ...]]:
    rows = database.rows(
        target.using,
        selects.passages(target),
        language=conf.current().text_search_config,
        words=words.ranking if words else None,
        options=_options(mark),
        ids=chunks,
    )
    return {row[0]: row[1:] for row in rows}


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
