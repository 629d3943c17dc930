"""What a search gives back: rows, how each was found, and an honest word about it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, overload

from django.db.models import Model
from django.utils.safestring import SafeString

from pgembed_django.models import Space

Row = TypeVar("Row", bound=Model)

Mode = Literal["hybrid", "semantic", "lexical"]

Ranking = Literal["hybrid", "semantic", "lexical", "mixed", "none"]
"""What was really used. ``mixed``: several models, not all alike. ``none``: nothing was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit(Generic[Row]):
    """One row and its best passage.

    ``score`` orders the hits of one search and means nothing beyond it. ``similarity`` is
    the cosine where the row was found by meaning, ``start`` and ``end`` are where the
    passage stands in the row's text, ``marks`` where the query's words stand in the passage.
    """

    instance: Row
    score: float
    similarity: float | None
    passage: str
    start: int
    end: int
    marks: tuple[tuple[int, int], ...]
    highlight: SafeString
    """The telling part of the passage: HTML that is safe to show, with ``<mark>``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results(Sequence[Row]):
    """The rows found, best first, each with ``score``, ``similarity``, ``passage``, ``highlight``.

    ``hits`` has the same and more, typed, also where a model has a field of such a name.
    ``degraded`` is true where the query could not be embedded, so that it was searched by words.
    ``note`` is for people: what was not as asked. ``next_offset`` is where the next page starts,
    None after the last one.
    """

    hits: tuple[Hit[Row], ...]
    ranking: Ranking
    spaces: tuple[Space, ...]
    degraded: bool = False
    note: str = ""
    next_offset: int | None = None

    @property
    def space(self) -> Space | None:
        """The space that was searched. None where there was none, or several."""
        return self.spaces[0] if len(self.spaces) == 1 else None

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return tuple(hit.instance for hit in self.hits[index])
        return self.hits[index].instance

    def __len__(self) -> int:
        return len(self.hits)
