"""Read what a person types for an option, and write numbers, durations and progress for them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from django.core.management.base import OutputWrapper

from pgembed_django import conf

LINE_SECONDS = 5.0
MAX_PORT = 65_535


class Address(NamedTuple):
    """A host and port to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def address(value: str) -> Address:
    """Parse ``9100``, ``0.0.0.0:9100`` or ``[::]:9100``."""
    host, _, port = value.rpartition(":")
    is_host = ":" not in host or host[0] == "["
    try:
        # The lookup of the host will encode it like this.
        host.encode("idna")
    except UnicodeError:
        is_host = False
    if not (is_host and port.isdecimal() and int(port) <= MAX_PORT):
        raise argparse.ArgumentTypeError(
            f"{value!r} is no address. Write it like 9100, 0.0.0.0:9100 or [::]:9100"
        )
    return Address(host.strip("[]") or "127.0.0.1", int(port))


def whole(value: str) -> int:
    """Parse a whole number of one or more."""
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a whole number of one or more")
    return int(value)


def above_zero(value: str) -> float:
    """Parse a number above zero."""
    try:
        parsed = float(value)
    except ValueError:
        parsed = 0.0
    if not 0 < parsed <= conf.ENDLESS:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number above zero")
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


@contextmanager
def progress(
    total: int,
    *,
    what: str,
    unit: str,
    out: OutputWrapper,
    is_quiet: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows how many of ``total`` are done. Lower numbers are ignored.

    It shows a bar on a terminal with tqdm installed, else a line every few seconds.
    """
    bar = None
    if out.isatty() and not is_quiet:
        try:
            from tqdm import tqdm

            bar = tqdm(total=total, desc=what, unit=f" {unit}", file=out)
        except ImportError:
            pass
    began = shown_at = clock()
    done = 0

    def show(number: int) -> None:
        nonlocal done, shown_at
        before, done = done, max(done, min(number, total))
        if bar is not None:
            bar.update(done - before)
        elif not is_quiet and clock() - shown_at >= LINE_SECONDS:
            shown_at = clock()
            rate = done / (shown_at - began)
            left = f", about {duration((total - done) / rate)} to go" if 0 < done < total else ""
            out.write(f"{what}: {done:,} of {total:,} {unit}, {rate:.1f} a second{left}")

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()
