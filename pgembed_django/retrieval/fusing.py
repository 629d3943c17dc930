"""Merge rankings by rank alone. Pure: knows no distances, no database."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)

FLATNESS = 20
"""The constant k of reciprocal rank fusion: the larger it is, the less the first ranks stand out.

Values from 5 to 60 hardly differ (measured on the tuning questions of ``benchmarks/judged``).

Source: Cormack, Clarke, Buettcher, "Reciprocal Rank Fusion outperforms Condorcet", SIGIR 2009.
"""


def fuse(
    rankings: Sequence[Sequence[Item]], *, only_in_one: Collection[Item] = ()
) -> dict[Item, float]:
    """Return the items of all rankings with their scores, best first.

    An item that is first in every ranking scores 1. On a tie, the item of the earlier ranking
    comes first. Items in ``only_in_one`` can appear in only one ranking, so their score there is
    counted for the other rankings too.
    """
    scores: dict[Item, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            share = len(rankings) if item in only_in_one else 1
            scores[item] = scores.get(item, 0.0) + share / (FLATNESS + rank)
    first = len(rankings) / (FLATNESS + 1)
    ordered = sorted(scores, key=lambda item: -scores[item])
    return {item: scores[item] / first for item in ordered}
