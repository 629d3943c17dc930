"""Merge rankings by rank alone. Pure: knows no distances, no database."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)

FLATNESS = 20
"""The constant k of reciprocal rank fusion: the larger, the less the first ranks stand out.

Between 5 and 60 it hardly matters (measured on the tuning questions of ``benchmarks/judged``).

Source: Cormack, Clarke, Buettcher, "Reciprocal Rank Fusion outperforms Condorcet", SIGIR 2009.
"""


def fuse(
    rankings: Sequence[Sequence[Item]], *, only_in_one: Collection[Item] = ()
) -> dict[Item, float]:
    """Return the items of all rankings with their scores, best first.

    An item that is first in every ranking has the score 1. Of equal scores, the item of an
    earlier ranking comes first. An item in ``only_in_one`` can be in one ranking only, so its
    share counts for the others too.
    """
    scores: dict[Item, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            share = len(rankings) if item in only_in_one else 1
            scores[item] = scores.get(item, 0.0) + share / (FLATNESS + rank)
    first = len(rankings) / (FLATNESS + 1)
    ordered = sorted(scores, key=lambda item: -scores[item])
    return {item: scores[item] / first for item in ordered}
