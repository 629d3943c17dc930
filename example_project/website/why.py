"""Say how a row was found: by which ways, how well by each, and where in its text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib.humanize.templatetags.humanize import ordinal

from pgembed_django.retrieval import Match
from website.snippets import snippet

MEASURES = {"lexical": ("words", "BM25 score", 1), "semantic": ("meaning", "cosine similarity", 2)}
"""What the page calls each way and its score, and how many decimals it shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way by which a row was found. ``excerpt`` is empty if the page shows the place anyway."""

    name: str
    rank: str
    measure: str
    score: str
    place: str
    excerpt: str = ""


def ways(
    matched_by: Sequence[Match], query: str, *, whole: str, shown: tuple[int, int]
) -> tuple[Way, ...]:
    """Return the ways, words first. ``shown`` is the place in ``whole`` that the page shows."""
    return tuple(
        _way(match, snippet(whole[match.start : match.end], query, whole=whole))
        if (match.start, match.end) != shown
        else _way(match, "")
        for match in sorted(matched_by, key=lambda match: match.mode)
    )


def _way(match: Match, excerpt: str) -> Way:
    name, measure, decimals = MEASURES[match.mode]
    return Way(
        name=name,
        rank=ordinal(match.rank),
        measure=measure,
        score=f"{match.score:.{decimals}f}",
        place=f"{match.start:,} to {match.end:,}",
        excerpt=excerpt,
    )
