"""Questions with known answers, and measures of a ranking's quality against them. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Part = Literal["tuning", "held-out"]

FILE = Path(__file__).with_name("queries.txt")
AT = 10
BEST, HELPFUL = 2, 1


@dataclass(frozen=True, slots=True)
class Question:
    """A question, with a grade for each entry that answers it."""

    part: Part
    text: str
    answers: Mapping[str, int]


class Everything(frozenset[str]):
    """A set that contains any name, for callers to whom only the questions matter."""

    def __contains__(self, name: object) -> bool:
        return True


def questions(*, existing: Collection[str]) -> Iterator[Question]:
    """Yield the questions, without answers that this Python's library does not have."""
    for line in FILE.read_text().splitlines():
        if line.startswith("#"):
            continue
        part, text, answers = (cell.strip() for cell in line.split(" | "))
        best, _, helpful = answers.partition(";")
        worth = dict.fromkeys(helpful.split(), HELPFUL) | dict.fromkeys(best.split(), BEST)
        worth = {name: value for name, value in worth.items() if name in existing}
        if worth:
            yield Question("tuning" if part == "tuning" else "held-out", text, worth)


def ndcg(ranking: Sequence[str], answers: Mapping[str, int]) -> float:
    """Return the normalized discounted cumulative gain of the first ten."""
    gains = [answers.get(name, 0) for name in ranking]
    return _dcg(gains) / _dcg(sorted(answers.values(), reverse=True))


def reciprocal_rank(ranking: Sequence[str], answers: Collection[str]) -> float:
    """Return 1 / rank of the first answer among the first ten, or zero if there is none."""
    ranks = (rank for rank, name in enumerate(ranking[:AT], start=1) if name in answers)
    return 1 / next(ranks, math.inf)


def recall(ranking: Sequence[str], answers: Collection[str]) -> float:
    """Return recall@10: the share found among the first ten, of as many answers as fit there."""
    return len(set(ranking[:AT]) & set(answers)) / min(AT, len(answers))


def _dcg(gains: Sequence[int]) -> float:
    return sum((2**gain - 1) / math.log2(place + 2) for place, gain in enumerate(gains[:AT]))
