"""The texts of the rows, all different, of 44 words on average."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.pipeline.texts import WORDS

MEAN = 44
VOCABULARY = WORDS.split()


def texts(count: int) -> Iterator[str]:
    """Yield ``count`` texts of half to one and a half times the mean number of words."""
    drawn = random.Random(1)
    for number in range(count):
        words = drawn.choices(VOCABULARY, k=drawn.randint(MEAN // 2, MEAN * 3 // 2) - 1)
        yield f"{number} {' '.join(words)}"
