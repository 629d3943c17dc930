"""Turn ranked keys into hits: rows with their passages and marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pgembed_django.retrieval import highlights, passages
from pgembed_django.retrieval.results import Hit
from pgembed_django.retrieval.targets import Target
from pgembed_django.retrieval.words import Words


class Ranked(NamedTuple):
    """A row's key, the id of its best chunk, and its scores."""

    key: Any
    chunk: int
    score: float
    similarity: float | None
    merit: float
    """A score by rank alone, which is comparable between models."""


def show(target: Target[Any], ranked: Sequence[Ranked], *, words: Words | None) -> list[Hit[Any]]:
    """Return the hits in the order of ``ranked``, without rows that are not in the queryset."""
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
    for hit in hits:
        _annotate(hit)
    return hits


def hides(target: Target[Any], keys: Sequence[Any]) -> bool:
    """Return whether any of these rows is not in the queryset, or hidden from the role."""
    if not keys:
        return False
    return target.keys.filter(pk__in=keys).distinct().count() < len(keys)


def _annotate(hit: Hit[Any]) -> None:
    """Set the hit's values as attributes of the instance, unless the name is taken."""
    own = vars(hit.instance)
    for name in ("score", "similarity", "passage", "highlight"):
        # Look in the instance's own class, which may differ from the queryset's.
        if name not in own and not hasattr(type(hit.instance), name):
            own[name] = getattr(hit, name)
