"""The texts of the rows, all different: about 300 characters each, or BENCHMARK_CHARACTERS."""

from __future__ import annotations

import os
from collections.abc import Iterator

WORDS = (
    "claims what has changed and asks for the vectors of its passages in batches across rows "
    "so that the server is never idle while the next ones are being read and cut and compared "
    "with what is stored, and whatever comes back is written together with the end of its job "
)


def texts(count: int) -> Iterator[str]:
    """Yield ``count`` texts."""
    times = int(os.environ.get("BENCHMARK_CHARACTERS", "300")) // 300
    for number in range(count):
        start = number * 7 % 80
        sentence = f"the worker {WORDS[start:]}{WORDS[:start]}"
        yield f"Row {number}: {'. '.join([sentence] * times)}"
