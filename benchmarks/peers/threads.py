"""The handler in 32 threads, with no queue at all: what there is to lose."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from benchmarks.queue.handler import AT_ONCE, Handler

ROUND = 10_000


def fill(url: str, count: int) -> None:
    """Nothing to add."""


def drain(url: str, handler: Handler) -> None:
    """Work."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        while True:
            list(threads.map(handler, range(ROUND)))
