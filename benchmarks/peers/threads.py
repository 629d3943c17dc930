"""The handler in 32 threads without any queue: the upper limit for all queues."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from benchmarks.queue.handler import AT_ONCE, Handler

ROUND = 10_000


def fill(url: str, count: int) -> None:
    """Do nothing: there is no queue."""


def drain(url: str, handler: Handler) -> None:
    """Call the handler."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        while True:
            list(threads.map(handler, range(ROUND)))
