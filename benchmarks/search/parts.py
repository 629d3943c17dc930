"""Where the time of a search goes: statement by statement. The rest is spent in Python."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

# Text that only one of a search's statements contains. The first match decides.
TELLING = {
    "EXPLAIN": "estimate",
    "query_tree": "space and words",
    "n_distinct": "statistics",
    "ts_headline": "passages",
    "'lexical'": "by words",
    "'semantic'": "by meaning",
}


class Parts:
    """The seconds that each kind of statement took, per search."""

    def __init__(self) -> None:
        self._searches: list[dict[str, float]] = []

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Record the times of one search."""
        spent: dict[str, float] = defaultdict(float)

        def note(execute: Callable[..., Any], statement: str, *arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return execute(statement, *arguments)
            finally:
                spent[_kind(statement)] += time.perf_counter() - began

        started = time.perf_counter()
        with connection.execute_wrapper(note):
            yield
        whole = time.perf_counter() - started
        self._searches.append({**spent, "Python": whole - sum(spent.values())})

    def __str__(self) -> str:
        names = dict.fromkeys(name for spent in self._searches for name in spent)
        medians = {
            name: statistics.median(spent.get(name, 0.0) for spent in self._searches)
            for name in names
        }
        return ", ".join(
            f"{name} {median * 1000:.1f}" for name, median in medians.items() if median
        )


def _kind(statement: str) -> str:
    found = [name for telling, name in TELLING.items() if telling in statement]
    if found[:2] == ["by words", "by meaning"]:
        return "both retrievers"
    return found[0] if found else "rows"
