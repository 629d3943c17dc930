"""How good searches are: judged questions about the standard library, in each mode.

Beside them, bm25s ranks the same texts by words, and is fused with our vectors as our words are.
The bars, in nDCG@10 over questions that were held out from all tuning: lexical is at most 0.005
worse than bm25s, and hybrid than its fusion. Hybrid is better than both of its retrievers.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import judged, postgres
from benchmarks.judged import Question
from benchmarks.search import corpus, fusions
from benchmarks.search.peer import Bm25s

MODES = ("lexical", "semantic", "hybrid")
PEER, PEER_FUSED = "bm25s", "bm25s + vectors"
SLACK = 0.005
Scores = dict[str, list[float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the model, and for printing each question's scores."""
    parser.add_argument("--model", choices=list(corpus.MODELS), default="wordllama")
    parser.add_argument("--part", choices=["tuning", "held-out"], help="only this one")
    parser.add_argument("--fusions", action="store_true", help="compare ways to fuse")
    parser.add_argument("--each", action="store_true", help="print each question")


def run(options: argparse.Namespace) -> int:
    """Measure. Return zero if the bar was reached."""
    with postgres.database():
        corpus.set_up(options.model)
        corpus.fill()
        status = 0
        for part in [options.part] if options.part else ["tuning", "held-out"]:
            scores = measure(part, each=options.each, with_fusions=options.fusions)
            if part == "held-out":
                status = reached(scores)
        from django.db import connections

        connections.close_all()
    return status


def measure(part: str, *, each: bool, with_fusions: bool) -> Scores:
    """Print the means over one part of the questions. Return each question's nDCG, by mode."""
    from library.models import Entry

    public = Entry.objects.filter(is_public=True)
    names = set(public.values_list("name", flat=True))
    asked = [one for one in judged.questions(existing=names) if one.part == part]
    print(f"\n{part}: {len(asked)} questions\n{'':16}{'recall@10':>12}{'MRR':>12}{'nDCG@10':>12}")
    scores: Scores = {}
    for name, rank in _rankers(public).items():
        rankings = [rank(one.text) for one in asked]
        scores[name] = _ndcgs(rankings, asked)
        pairs = list(zip(rankings, asked, strict=True))
        means = (
            statistics.fmean(judged.recall(ranking, one.answers) for ranking, one in pairs),
            statistics.fmean(
                judged.reciprocal_rank(ranking, one.answers) for ranking, one in pairs
            ),
            statistics.fmean(scores[name]),
        )
        print(f"{name:16}" + "".join(f"{mean:12.3f}" for mean in means))
    if with_fusions:
        fusions.compare(public, asked)
    if each:
        for number, one in enumerate(asked):
            print(" ".join(f"{ndcgs[number]:.2f}" for ndcgs in scores.values()), one.text)
    return scores


def _rankers(public: Any) -> dict[str, Callable[[str], list[str]]]:
    """Return functions that return the names of the best entries for a question."""
    from pgembed_django import search
    from pgembed_django.declaration import specs
    from pgembed_django.retrieval import fusion

    def of_mode(mode: Any) -> Callable[[str], list[str]]:
        return lambda text: [row.name for row in search(public, text, mode=mode, limit=judged.AT)]

    [spec] = specs.of(public.model)
    peer = Bm25s({entry.name: spec.text_of(entry) for entry in public})
    rows = fusion.SHALLOW.rows

    def of_peer_and_vectors(text: str) -> list[str]:
        near = search(public, text, mode="semantic", limit=rows)
        by_meaning = {hit.instance.name: hit.score for hit in near.hits}
        found = {"semantic": by_meaning, "lexical": peer.rank(text, rows=rows)}
        return list(fusion.fuse(found))[: judged.AT]

    return {
        **{mode: of_mode(mode) for mode in MODES},
        PEER: lambda text: list(peer.rank(text, rows=judged.AT)),
        PEER_FUSED: of_peer_and_vectors,
    }


def reached(scores: Scores) -> int:
    """Print our gains over both retrievers and the peer, with standard errors. Return a status."""
    print()
    bars = [
        ("lexical", PEER, -SLACK),
        ("hybrid", PEER_FUSED, -SLACK),
        ("hybrid", "lexical", 0.0),
        ("hybrid", "semantic", 0.0),
    ]
    missed = 0
    for ours, theirs, least in bars:
        gains = [mine - its for mine, its in zip(scores[ours], scores[theirs], strict=True)]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        is_reached = statistics.fmean(gains) >= least
        missed += not is_reached
        print(
            f"{ours} over {theirs:16}{statistics.fmean(gains):+.3f} (standard error {error:.3f}), "
            f"to reach: {least:+.3f}: {'reached' if is_reached else 'missed'}"
        )
    return int(missed > 0)


def _ndcgs(rankings: Sequence[Sequence[str]], asked: Sequence[Question]) -> list[float]:
    return [judged.ndcg(one, of.answers) for one, of in zip(rankings, asked, strict=True)]
