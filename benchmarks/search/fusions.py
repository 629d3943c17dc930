"""Other ways to fuse what words and meaning find, beside ours, on the same two rankings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import judged
from benchmarks.judged import Question

Found = Mapping[str, Mapping[str, float]]
"""By retriever: the names of entries, best first, with the values that they are ranked by."""


def compare(public: Any, asked: Sequence[Question]) -> None:
    """Print the mean nDCG@10 of each way."""
    found = [_found(public, one.text) for one in asked]
    ways: dict[str, Callable[[Found], list[str]]] = {
        "ours: the mean": _ours,
        **{f"ranks, k = {k}": _by_ranks(k) for k in (5, 20, 60)},
        **{
            f"scores, {share:g} of the meaning": _by_scores(share) for share in (0.3, 0.4, 0.6, 0.7)
        },
    }
    for name, fuse in ways.items():
        ndcgs = [
            judged.ndcg(fuse(one)[: judged.AT], question.answers)
            for one, question in zip(found, asked, strict=True)
        ]
        print(f"{name:28}{sum(ndcgs) / len(ndcgs):12.3f}")


def _found(public: Any, text: str) -> Found:
    from pgembed_django import search
    from pgembed_django.retrieval.fusion import SHALLOW

    names = {"semantic", "lexical"}
    hits = {name: search(public, text, mode=name, limit=SHALLOW.rows).hits for name in names}
    return {
        name: {hit.instance.name: hit.matched_by[0].score for hit in of_name}
        for name, of_name in hits.items()
    }


def _ours(found: Found) -> list[str]:
    from pgembed_django.retrieval import fusion

    named: Any = {name: found[name] for name in ("semantic", "lexical")}
    return list(fusion.fuse(named))


def _by_ranks(k: int) -> Callable[[Found], list[str]]:
    """Reciprocal rank fusion: Cormack, Clarke, Buettcher, SIGIR 2009."""

    def fuse(found: Found) -> list[str]:
        scores: dict[str, float] = defaultdict(float)
        for entries in found.values():
            for rank, name in enumerate(entries, start=1):
                scores[name] += 1 / (k + rank)
        return sorted(scores, key=lambda name: -scores[name])

    return fuse


def _by_scores(share: float) -> Callable[[Found], list[str]]:
    """The weighted sum of the values, from 1 for the best to 0 for the last result."""

    def fuse(found: Found) -> list[str]:
        from pgembed_django.retrieval.fusion import SHALLOW

        scores: dict[str, float] = defaultdict(float)
        for weight, entries in ((share, found["semantic"]), (1 - share, found["lexical"])):
            values = [*entries.values(), 0.0][: SHALLOW.results]
            for name, value in entries.items():
                span = values[0] - values[-1]
                scores[name] += weight * max(value - values[-1], 0) / (span or 1)
        return sorted(scores, key=lambda name: -scores[name])

    return fuse
