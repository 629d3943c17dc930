"""What ends a worker: signals, and what it may use up before it is to be started again."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1024 * 1024
MEMORY_SECONDS = 1.0
"""The least time between two reads of the memory."""

STATM = Path("/proc/self/statm")


class Limits:
    """What a worker may use up before it is recycled. None: no limit."""

    def __init__(
        self,
        *,
        max_jobs: int | None = None,
        max_memory_mib: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_jobs = max_jobs
        self.max_memory_mib = max_memory_mib
        self._clock = clock
        self._looked_at = float("-inf")

    def reached(self, completed: int) -> str:
        """Return why the worker should end. Empty: it need not."""
        if self.max_jobs is not None and completed >= self.max_jobs:
            return f"--max-jobs is {self.max_jobs:,}, embedded: {completed:,}"
        if self.max_memory_mib is not None and self._is_time():
            used = memory_bytes() / MIB
            if used > self.max_memory_mib:
                return f"it uses {used:.0f} MiB, --max-memory is {self.max_memory_mib}"
        return ""

    def _is_time(self) -> bool:
        now = self._clock()
        if now < self._looked_at + MEMORY_SECONDS:
            return False
        self._looked_at = now
        return True


def memory_bytes() -> int:
    """Return this process's resident memory, or its peak where the system tells only that."""
    import resource

    try:
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return highest if sys.platform == "darwin" else highest * 1024


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[Callable[[], None] | None]:
    """Call ``stop`` at each SIGTERM and SIGINT. Does nothing outside the main thread.

    Yields a function that sets the handlers again, if a project's code has replaced them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None
        return

    def handle(*_: object) -> None:
        stop()

    def handle_again() -> None:
        for number in before:
            if signal.getsignal(number) is not handle:
                signal.signal(number, handle)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield handle_again
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
