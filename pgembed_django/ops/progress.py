"""Show the progress of a long command: a bar on a terminal with tqdm installed, else lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from django.core.management.base import OutputWrapper

from pgembed_django.ops.verdicts import duration

LINE_SECONDS = 5.0


class Progress:
    """Shows ``done`` of ``total``, with rate and time left. Shows nothing with ``is_quiet``."""

    def __init__(
        self,
        total: int,
        *,
        what: str,
        unit: str,
        out: OutputWrapper,
        is_quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self.done = 0
        self._what = what
        self._unit = unit
        self._out = out
        self._is_quiet = is_quiet
        self._clock = clock
        self._began = self._told_at = clock()
        self._bar: Any = None if is_quiet else _bar(total, what=what, unit=unit, out=out)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, done: int) -> None:
        """Show that ``done`` are done in total. A lower number than before is ignored."""
        step = max(0, done - self.done)
        self.done += step
        if self._bar is not None:
            self._bar.update(step)
        elif not self._is_quiet and self._clock() - self._told_at >= LINE_SECONDS:
            self._told_at = self._clock()
            self._out.write(self.line())

    def line(self) -> str:
        """Return the progress in one line."""
        elapsed = self._clock() - self._began
        rate = self.done / elapsed if elapsed > 0 else 0.0
        left = max(0, self.total - self.done)
        text = f"{self._what}: {self.done:,} of {self.total:,} {self._unit}, {rate:.1f} a second"
        return f"{text}, about {duration(left / rate)} to go" if rate and left else text


def _bar(total: int, *, what: str, unit: str, out: OutputWrapper) -> Any:
    if not out.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, desc=what, unit=f" {unit}", file=out)
