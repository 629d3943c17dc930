"""The handler that every contender calls, and the thread that reports its figures."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import threading
import time

SLEEP_SECONDS = (0.002, 0.005)
AT_ONCE = 32
BATCH = 50


class Handler:
    """Notes when each call has ended. ``sleeps``: sleep for 2 to 5 ms, or return at once."""

    def __init__(self, *, sleeps: bool) -> None:
        self.sleeps = sleeps
        self.ended: list[float] = []
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.cpu_before = 0.0

    def __call__(self, *_: object) -> None:
        self._begin()
        if self.sleeps:
            time.sleep(random.uniform(*SLEEP_SECONDS))
        self.ended.append(time.perf_counter())

    async def later(self, *_: object) -> None:
        """Do the same in an event loop, for a limited number of calls at once."""
        self._begin()
        if self.sleeps:
            async with self._slots:
                await asyncio.sleep(random.uniform(*SLEEP_SECONDS))
        self.ended.append(time.perf_counter())

    def tell_and_exit_after(self, seconds: float, *, jobs: int) -> None:
        """Start a thread that prints the figures once all jobs or the time are done, and exits."""
        threading.Thread(target=self._watch, args=(seconds, jobs), daemon=True).start()

    def _begin(self) -> None:
        if not self.cpu_before:
            self.cpu_before = _cpu_seconds()

    def _watch(self, seconds: float, jobs: int) -> None:
        while not self.ended:
            time.sleep(0.005)
        end = self.ended[0] + seconds
        while time.perf_counter() < end and len(self.ended) < jobs:
            time.sleep(0.005)
        told = json.dumps(self.figures())
        os.write(1, f"{told}\n".encode())  # Celery has another sys.stdout
        os._exit(0)

    def figures(self) -> dict[str, float]:
        """Return what is told at the end."""
        ended = list(self.ended)
        taken = ended[-1] - ended[0]
        cpu = _cpu_seconds() - self.cpu_before
        return {"jobs": len(ended), "jobs/s": (len(ended) - 1) / taken, "CPU s": cpu}


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
