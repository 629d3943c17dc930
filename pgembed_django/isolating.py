"""Find what fails among many by halving. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def isolate(attempt: Callable[[Sequence[T]], Iterable[Sequence[T]]], items: Sequence[T]) -> None:
    """Attempt all items at once, and then what each attempt returns instead: see ``halves``.

    What is returned comes after all others, so that one bad item delays the rest only once.
    """
    groups = deque([items] if items else [])
    while groups:
        groups.extend(attempt(groups.popleft()))


def halves(items: Sequence[T]) -> list[Sequence[T]]:
    """Return two halves. Empty: there is only one item, so it is the one that fails."""
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else []
