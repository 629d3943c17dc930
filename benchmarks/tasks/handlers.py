"""The handlers that every contender calls: one is timed, one tells when it was called."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

from benchmarks.queue.handler import Handler


class Timed(Handler):
    """Also notes how long each call took, for the formula of throughput."""

    def __init__(self, *, sleeps: bool) -> None:
        super().__init__(sleeps=sleeps)
        self.taken: list[float] = []
        self.beside: Callable[[], dict[str, float]] = dict
        """Returns what else is told."""

    def __call__(self, *arguments: object) -> None:
        began = time.perf_counter()
        super().__call__(*arguments)
        self.taken.append(time.perf_counter() - began)

    async def later(self, *arguments: object) -> None:
        began = time.perf_counter()
        await super().later(*arguments)
        self.taken.append(time.perf_counter() - began)

    def figures(self) -> dict[str, float]:
        handle = {"handle ms": 1000 * statistics.fmean(self.taken)}
        return {**super().figures(), **handle, **self.beside()}


class Starts(Handler):
    """Prints the job's number and the time at which it was called."""

    PREFIX = "started"

    def __init__(self) -> None:
        super().__init__(sleeps=False)

    def __call__(self, *arguments: object) -> None:
        # In one write: threads share the pipe.
        os.write(1, f"{self.PREFIX} {arguments[0]} {time.monotonic()}\n".encode())

    async def later(self, *arguments: object) -> None:
        self(*arguments)
