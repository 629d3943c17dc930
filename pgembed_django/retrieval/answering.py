"""Rank the rows of one target. Says which arms it had, and why not the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pgembed_django import spaces
from pgembed_django.exceptions import ProviderError
from pgembed_django.models import Space
from pgembed_django.providers.base import Vector
from pgembed_django.retrieval import arms, fusing, queries, words
from pgembed_django.retrieval.arms import Depth, Found
from pgembed_django.retrieval.queries import Pending
from pgembed_django.retrieval.results import Mode, Ranking
from pgembed_django.retrieval.showing import Ranked
from pgembed_django.retrieval.targets import Target
from pgembed_django.retrieval.words import Words

# Two depths, and no more: what the first pages show must not depend on how far one asks,
# and a longer look changes how the arms are fused. The results of the first depth stay.
SHALLOW = Depth(results=51, rows=100)
DEEP = Depth(results=1001, rows=1001)

NOTHING_YET = "Nothing is embedded yet: is manage.py embed_worker running?"
EMPTY = "The query is empty."
NO_WORDS = "There is no word in the query that full text looks for."
NO_VECTOR = "The query could not be embedded, so it was looked for by its words alone."
PARTIAL = "The vectors of a new model are searched before all rows have one."

Arm = Callable[[Depth], list[Found]]

logger = logging.getLogger("pgembed_django")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of one target. Its vector may be on its way."""

    target: Target[Any]
    text: str
    mode: Mode
    space: Space | None
    pending: Pending | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The ranked rows of one target, with their merits by rank alone."""

    question: Question
    reach: int
    within: bool
    ranked: Sequence[Ranked] = ()
    merits: Sequence[float] = ()
    words: Words | None = None
    ranking: Ranking = "none"
    degraded: bool = False
    note: str = ""

    @property
    def space(self) -> Space | None:
        return self.question.space


def ask(target: Target[Any], text: str, *, mode: Mode) -> Question:
    """Send the text to be embedded by the provider of the space that is searched."""
    space = spaces.active(target.spec, using=target.using)
    needs_vector = space is not None and text and mode != "lexical"
    pending = queries.vectors.ask(space, text) if space and needs_vector else None
    return Question(target=target, text=text, mode=mode, space=space, pending=pending)


def answer(question: Question, *, reach: int, within: bool | None = None) -> Answer:
    """Rank at least ``reach`` rows, if there are as many.

    ``within``: whether rows are ranked only if they are in the queryset. Otherwise, and
    where the queryset is the whole table, that is seen to when they are shown.
    """
    target, space = question.target, question.space
    within = target.narrows if within is None else within
    none = Answer(question, reach, within)
    if not question.text and not question.pending:
        return replace(none, note=EMPTY)
    if space is None:
        return replace(none, note=NOTHING_YET)
    found = words.read(target, space, question.text)

    def by_words(depth: Depth) -> list[Found]:
        return arms.lexical(target, space, found, depth=depth, within=within)

    lexical = _known(by_words, SHALLOW) if found and question.mode != "semantic" else None
    # The first look at the words went on while the query was being embedded.
    vector = _vector(question.pending)
    is_degraded = vector is None and question.mode != "lexical"
    semantic = _meaning(target, space, vector, found, within=within)
    if semantic is None and lexical is None and found:
        lexical = by_words
    notes = {
        NO_VECTOR: is_degraded,
        NO_WORDS: not found and question.mode != "semantic",
        PARTIAL: space.is_partial,
    }
    # Meaning first: of two chunks of a row at the same rank, its one is shown.
    ranked, merits = _rank(semantic, lexical, reach=reach)
    return replace(
        none,
        ranked=ranked,
        merits=merits,
        words=found,
        ranking=_ranking(semantic, lexical, question.mode),
        degraded=is_degraded,
        note=" ".join(note for note, holds in notes.items() if holds),
    )


def _meaning(
    target: Target[Any], space: Space, vector: Vector | None, found: Words, *, within: bool
) -> Arm | None:
    """Return the arm that finds what is near a vector."""
    if vector is None:
        return None

    def by_meaning(depth: Depth) -> list[Found]:
        return arms.semantic(
            target,
            space,
            vector,
            depth=depth,
            within=within,
            indexed_chunks=found.indexed_chunks,
        )

    return by_meaning


def _known(arm: Arm, depth: Depth) -> Arm:
    """Return the arm with its answer at one depth known already."""
    known = arm(depth)
    return lambda other: known if other == depth else arm(other)


def _rank(
    semantic: Arm | None, lexical: Arm | None, *, reach: int
) -> tuple[list[Ranked], list[float]]:
    """Return the rows in their order, and their merits: from 1 for first in each arm down."""
    ranked: dict[Any, Ranked] = {}
    merits: dict[Any, float] = {}
    for depth in (SHALLOW, DEEP) if reach > SHALLOW.results else (SHALLOW,):
        by_meaning = {one.key: one for one in semantic(depth)} if semantic else {}
        by_words = {one.key: one for one in lexical(depth)} if lexical else {}
        rankings = [list(found) for found in (by_meaning, by_words) if found]
        places = [{key: place for place, key in enumerate(keys)} for keys in rankings]
        waiting = {key for key, one in by_words.items() if one.waits}
        fused = fusing.fuse(rankings, alone=waiting)
        for key in list(fused)[: depth.results]:
            if key in ranked:
                continue
            merits[key] = min(fused[key], *list(merits.values())[-1:], 1.0)
            ranked[key] = _ranked(key, merits[key], by_meaning, by_words, places)
    return list(ranked.values()), list(merits.values())


def _ranked(
    key: Any,
    merit: float,
    by_meaning: dict[Any, Found],
    by_words: dict[Any, Found],
    places: Sequence[dict[Any, int]],
) -> Ranked:
    near, worded = by_meaning.get(key), by_words.get(key)
    similarity = near.value if near else None
    if near and worded:
        best = near if places[0][key] <= places[1][key] else worded
    else:
        best = near or worded  # type: ignore[assignment]
    is_fused = len(places) > 1
    return Ranked(key, best.chunk, merit if is_fused else best.value, similarity)


def _vector(pending: Pending | None) -> Vector | None:
    if pending is None:
        return None
    try:
        return pending.vector()
    except ProviderError as error:
        logger.warning("A query was not embedded by %s: %s", pending.space.model, error)
        return None


def _ranking(semantic: Arm | None, lexical: Arm | None, mode: Mode) -> Ranking:
    if semantic and lexical:
        return "hybrid"
    if semantic:
        return "semantic"
    return "lexical" if lexical or mode == "lexical" else "none"
