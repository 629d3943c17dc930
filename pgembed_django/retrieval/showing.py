"""Make of ranked keys what a person sees: the rows themselves, their passages, the marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pgembed_django.retrieval import highlights, passages
from pgembed_django.retrieval.results import Hit
from pgembed_django.retrieval.targets import Target
from pgembed_django.retrieval.words import Words


class Ranked(NamedTuple):
    """A row that is to be shown, by its key, and why."""

    key: Any
    chunk: int
    score: float
    similarity: float | None


def show(target: Target[Any], ranked: Sequence[Ranked], *, words: Words | None) -> list[Hit[Any]]:
    """Return the hits, in their order. Left out are rows that are not in the queryset."""
    if not ranked:
        return []
    rows = {row.pk: row for row in target.rows.filter(pk__in=[one.key for one in ranked])}
    chunks = {one.key: one.chunk for one in ranked}
    found = passages.of(target, rows, chunks, words=words)
    hits = [
        Hit(
            instance=rows[one.key],
            score=one.score,
            similarity=one.similarity,
            passage=passage.text,
            start=passage.start,
            end=passage.end,
            marks=passage.marks,
            highlight=highlights.highlight(passage.text, passage.marks),
        )
        for one in ranked
        if (passage := found.get(one.key))
    ]
    _annotate(target, hits)
    return hits


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
