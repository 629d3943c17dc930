"""Make of ranked keys what a person sees: the rows themselves, their passages, the marks."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.db.models import F
from django.db.models.lookups import IsNull

from pgembed_django import conf, database
from pgembed_django.retrieval import highlights
from pgembed_django.retrieval.results import Hit
from pgembed_django.retrieval.targets import Target
from pgembed_django.retrieval.words import Words

LONGEST_BEGINNING = 500

# HighlightAll: the passage as it is, HTML in it included, with nothing but the marks added.
HEADLINES = """
    SELECT ts_headline(%(language)s::regconfig, passage, %(words)s::tsquery, %(options)s)
    FROM unnest(%(passages)s::text[]) WITH ORDINALITY AS shown(passage, place)
    ORDER BY place
"""


class Ranked(NamedTuple):
    """A row that is to be shown, by its key, and why."""

    key: Any
    chunk: int
    score: float
    similarity: float | None


class _Passage(NamedTuple):
    text: str
    start: int
    end: int


def show(target: Target[Any], ranked: Sequence[Ranked], *, words: Words | None) -> list[Hit[Any]]:
    """Return the hits, in their order. Left out are rows that are not in the queryset."""
    if not ranked:
        return []
    rows = {row.pk: row for row in target.rows.filter(pk__in=[one.key for one in ranked])}
    passages = _passages(target, rows, ranked)
    shown = [one for one in ranked if one.key in passages]
    texts = [passages[one.key] for one in shown]
    marks = _marks(target.using, [passage.text for passage in texts], words)
    hits = [
        Hit(
            instance=rows[one.key],
            score=one.score,
            similarity=one.similarity,
            passage=passage.text,
            start=passage.start,
            end=passage.end,
            marks=marked,
            highlight=highlights.highlight(passage.text, marked),
        )
        for one, passage, marked in zip(shown, texts, marks, strict=True)
    ]
    _annotate(target, hits)
    return hits


def _passages(
    target: Target[Any], rows: dict[Any, Any], ranked: Iterable[Ranked]
) -> dict[Any, _Passage]:
    """Return what is shown of each row. Nothing of one that hides what is not of its text."""
    spec = target.spec
    chunks = spec.embedding_model._base_manager.using(target.using).filter(
        pk__in=[one.chunk for one in ranked]
    )
    columns = ("id", "passage", "start_offset", "end_offset", "text_digest", "waits")
    chunks = chunks.annotate(waits=IsNull(F("embedding"), True))
    stored = {row[0]: row[1:] for row in chunks.values_list(*columns)}
    found = {}
    for one in ranked:
        row = rows.get(one.key)
        if row is None:
            continue
        if one.chunk not in stored:
            # A worker has replaced it since: the row is still the answer.
            text = spec.text_of(row)[:LONGEST_BEGINNING]
            found[one.key] = _Passage(text, 0, len(text))
            continue
        text, start, end, digest, waits = stored[one.chunk]
        if waits and spec.stale == "hide" and spec.text_digest(spec.text_of(row)) != bytes(digest):
            continue
        if text is None:
            text = spec.text_of(row)[start:end]
        found[one.key] = _Passage(text, start, end)
    return found


def _marks(using: str, passages: list[str], words: Words | None) -> list[highlights.Marks]:
    if not words or not passages:
        return [()] * len(passages)
    # Nobody can have written it into a text: whatever stands between two is a word.
    mark = f"pgembed{secrets.token_hex(8)}"
    headlines = database.rows(
        using,
        HEADLINES,
        language=conf.current().text_search_config,
        words=words.ranking,
        passages=passages,
        options=f"HighlightAll=true, StartSel={mark}, StopSel={mark}",
    )
    return [
        highlights.marks_in(headline, passage=passage, mark=mark)
        for passage, (headline,) in zip(passages, headlines, strict=True)
    ]


def _annotate(target: Target[Any], hits: Sequence[Hit[Any]]) -> None:
    """Put what was found on the instances, unless they have something of that name."""
    taken = set(target.queryset.query.annotations) | set(target.queryset.query.extra)
    names = [
        name
        for name in ("score", "similarity", "passage", "highlight")
        if name not in taken and not hasattr(target.queryset.model, name)
    ]
    for hit in hits:
        vars(hit.instance).update({name: getattr(hit, name) for name in names})
