"""Treat SIGTERM and the closing of the terminal like Ctrl-C, but only the first signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block at the first of these signals."""
    before = {number: signal.signal(number, _interrupt) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Ignore further signals, so that the demo stops its processes in order."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    ignore()
    raise KeyboardInterrupt
