"""Find what fails among many by halving. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def isolate(attempt: Callable[[Sequence[T]], Iterable[Sequence[T]]], *items: Sequence[T]) -> None:
    """Attempt groups of items, and then the groups that each attempt returns: see ``halves``.

    These come after all others, so that what is held up by one bad item is the least possible.
    """
    groups = deque(group for group in items if group)
    while groups:
        groups.extend(attempt(groups.popleft()))


def halves(items: Sequence[T]) -> list[Sequence[T]]:
    """Return two halves. Empty: there is only one item, so it is the one that fails."""
    middle = len(items) // 2
    return [items[:middle], items[middle:]] if middle else []
