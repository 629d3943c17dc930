"""Read what a person types for an option, and write numbers, durations and progress for them."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from django.core.management.base import OutputWrapper

LINE_SECONDS = 5.0
MAX_PORT = 65_535


class Address(NamedTuple):
    """A host and port to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def address(value: object) -> Address:
    """Parse ``9100``, ``0.0.0.0:9100`` or ``[::]:9100``."""
    host, _, number = str(value).rpartition(":")
    is_port = number.isdecimal() and int(number) <= MAX_PORT
    if not (is_port and _is_host(host)):
        raise argparse.ArgumentTypeError(
            f"{value!r} is no address. Write it like 9100, 0.0.0.0:9100 or [::]:9100"
        )
    return Address(host.strip("[]") or "127.0.0.1", int(number))


def _is_host(text: str) -> bool:
    try:
        # The lookup of the host will encode it like this.
        text.encode("idna")
    except UnicodeError:
        return False
    return ":" not in text or text[0] == "["


def whole(value: object) -> int:
    """Parse a whole number of one or more."""
    text = str(value)
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a whole number of one or more")
    return int(text)


def seconds(value: object) -> float:
    """Parse a number of seconds above zero."""
    parsed = _number(value, "a number of seconds above zero")
    if parsed > threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{value!r} is more seconds than can be waited for")
    return parsed


def above_zero(value: object) -> float:
    """Parse a number above zero."""
    return _number(value, "a number above zero")


def _number(value: object, what: str) -> float:
    try:
        parsed = float(str(value))
    except ValueError:
        parsed = -1.0
    if not 0 < parsed < float("inf"):
        raise argparse.ArgumentTypeError(f"{value!r} is not {what}")
    return parsed


def rows_text(rows: int) -> str:
    """Return a number of rows in words: no rows, 1 row, 1,205 rows."""
    if rows == 1:
        return "1 row"
    return f"{rows:,} rows" if rows else "no rows"


def duration(seconds: float) -> str:
    """Return a duration in words: 4 s, 12 min, 3 h, 2 days."""
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"


class Progress:
    """Shows ``done`` of ``total``, with rate and time left. Shows nothing with ``is_quiet``.

    A bar on a terminal with tqdm installed, else lines.
    """

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
