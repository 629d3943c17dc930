"""How good searches are: judged questions about the standard library, in each mode.

The bars, in nDCG@10 over questions that were held out from all tuning: with WordLlama, hybrid is
better than both of its arms. With MiniLM, it is at most 0.01 worse than the better arm.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from benchmarks import judged, postgres
from benchmarks.judged import Question
from benchmarks.search import corpus

MODES = ("lexical", "semantic", "hybrid")
Scores = dict[str, list[float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the model, and for printing each question's scores."""
    parser.add_argument("--model", choices=list(corpus.MODELS), default="wordllama")
    parser.add_argument("--part", choices=["tuning", "held-out"], help="only this one")
    parser.add_argument("--each", action="store_true", help="print each question")


def run(options: argparse.Namespace) -> int:
    """Measure. Return zero if the bar was reached."""
    with postgres.database():
        corpus.set_up(options.model)
        corpus.fill()
        status = 0
        for part in [options.part] if options.part else ["tuning", "held-out"]:
            scores = measure(part, each=options.each)
            if part == "held-out":
                status = reached(scores, model=options.model)
        from django.db import connections

        connections.close_all()
    return status


def measure(part: str, *, each: bool) -> Scores:
    """Print the means over one part of the questions. Return each question's nDCG, by mode."""
    from library.models import Entry

    from pgembed_django import search

    public = Entry.objects.filter(is_public=True)
    names = set(public.values_list("name", flat=True))
    asked = [one for one in judged.questions(existing=names) if one.part == part]
    print(f"\n{part}: {len(asked)} questions\n{'':12}{'recall@10':>12}{'MRR':>12}{'nDCG@10':>12}")
    scores: Scores = {}
    for mode in MODES:
        rankings = [
            [entry.name for entry in search(public, one.text, mode=mode, limit=judged.AT)]
            for one in asked
        ]
        scores[mode] = _ndcgs(rankings, asked)
        pairs = list(zip(rankings, asked, strict=True))
        means = (
            statistics.fmean(judged.recall(ranking, one.answers) for ranking, one in pairs),
            statistics.fmean(
                judged.reciprocal_rank(ranking, one.answers) for ranking, one in pairs
            ),
            statistics.fmean(scores[mode]),
        )
        print(f"{mode:12}" + "".join(f"{mean:12.3f}" for mean in means))
    if each:
        for number, one in enumerate(asked):
            print(" ".join(f"{scores[mode][number]:.2f}" for mode in MODES), one.text)
    return scores


def reached(scores: Scores, *, model: str) -> int:
    """Print how much hybrid gains over each arm, with its standard error. Return an exit status."""
    slack = 0.01 if model == "minilm" else 0.0
    print()
    for arm in ("lexical", "semantic"):
        gains = [mine - its for mine, its in zip(scores["hybrid"], scores[arm], strict=True)]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        print(f"hybrid over {arm:10}{statistics.fmean(gains):+.3f} (standard error {error:.3f})")
    best = max(statistics.fmean(scores[arm]) for arm in ("lexical", "semantic"))
    is_reached = statistics.fmean(scores["hybrid"]) > best - slack
    print("reached" if is_reached else "missed")
    return int(not is_reached)


def _ndcgs(rankings: Sequence[Sequence[str]], asked: Sequence[Question]) -> list[float]:
    return [judged.ndcg(one, of.answers) for one, of in zip(rankings, asked, strict=True)]
