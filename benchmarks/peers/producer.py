"""How a contender enqueues: one job in a transaction of its own, or many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Producer(NamedTuple):
    """The number is the job's argument."""

    one: Callable[[int], object]
    many: Callable[[Sequence[int]], object]
