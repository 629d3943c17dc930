"""Stop for SIGTERM and a closed terminal as for Ctrl-C, and only once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt for the first of them in this block."""
    before = {number: signal.signal(number, _interrupt) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Take no more of them: what is being stopped is stopped in order."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    ignore()
    raise KeyboardInterrupt
