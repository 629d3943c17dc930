"""Progress bars, which are updated often on a terminal and seldom in a log."""

from __future__ import annotations

import sys
from typing import NoReturn

from tqdm import tqdm


def bar(description: str, *, total: int, done: int = 0, show: bool = True) -> tqdm[NoReturn]:
    """Return a bar that shows the number of rows, and rows per second."""
    return tqdm(
        desc=description,
        total=total,
        initial=done,
        unit=" rows",
        disable=not show,
        mininterval=0.1 if sys.stderr.isatty() else 2,
        dynamic_ncols=True,
    )
