"""What a search returns: rows, how each was found, and any shortcomings of the search."""

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
"""Which arms were used. ``mixed``: different ones for different models. ``none``: no arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit(Generic[Row]):
    """One row and its best passage.

    ``score`` orders the hits of one search: do not compare it between searches. ``similarity`` is
    the cosine similarity if the row was found by meaning, else None. ``start`` and ``end`` are
    the passage's offsets in the row's text. ``marks`` has the start and end of each of the
    query's words in the passage.
    """

    instance: Row
    score: float
    similarity: float | None
    passage: str
    start: int
    end: int
    marks: tuple[tuple[int, int], ...]
    highlight: SafeString
    """The part of the passage with most marks, as HTML that is safe to show, with ``<mark>``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results(Sequence[Row]):
    """The rows found, best first, each with ``score``, ``similarity``, ``passage``, ``highlight``.

    ``hits`` has these and more, typed, and also if the model has a field with one of these names.
    ``degraded``: the query could not be embedded, so it was searched by words only. ``note`` says
    for people what the search could not do as asked. ``next_offset`` is where the next page
    starts, or None on the last page.
    """

    hits: tuple[Hit[Row], ...]
    ranking: Ranking
    spaces: tuple[Space, ...]
    degraded: bool = False
    note: str = ""
    next_offset: int | None = None

    @property
    def space(self) -> Space | None:
        """The space that was searched. None if there was none, or several."""
        return self.spaces[0] if len(self.spaces) == 1 else None

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return tuple(hit.instance for hit in self.hits[index])
        try:
            return self.hits[index].instance
        except IndexError:
            found = f"has {len(self)} on this page" if self.hits else "found none"
            said = f"No result has the index {index}: the search {found}. {self.note}"
            raise IndexError(said.strip()) from None

    def __len__(self) -> int:
        return len(self.hits)
