"""Let SIGTERM and SIGINT ask a worker to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Call ``stop`` at each such signal. Does nothing outside the main thread.

    Yields a function that sets the handlers again, if a project's code has replaced them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
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
