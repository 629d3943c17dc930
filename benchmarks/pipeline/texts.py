"""The texts of the rows: about 300 characters each, all different."""

from __future__ import annotations

from collections.abc import Iterator

WORDS = (
    "claims what has changed and asks for the vectors of its passages in batches across rows "
    "so that the server is never idle while the next ones are being read and cut and compared "
    "with what is stored, and whatever comes back is written together with the end of its job "
)


def texts(count: int) -> Iterator[str]:
    """Yield ``count`` texts."""
    for number in range(count):
        start = number * 7 % 80
        yield f"Row {number}: the worker {WORDS[start:]}{WORDS[:start]}"
