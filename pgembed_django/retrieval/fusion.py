"""Rank the rows of one target: run its retrievers, and fuse what they find by their scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pgembed_django.exceptions import ProviderError
from pgembed_django.models import Space
from pgembed_django.providers.base import Vector
from pgembed_django.retrieval import query_vectors, retrievers, statistics
from pgembed_django.retrieval.query_vectors import Pending
from pgembed_django.retrieval.results import Matched, Mode, Ranked, Ranking
from pgembed_django.retrieval.retrievers import LEXICAL, SEMANTIC, Depth, FoundBy, Name
from pgembed_django.retrieval.statistics import Survey, Words
from pgembed_django.retrieval.targets import Target

# Two fixed depths: searching deeper changes how rankings are fused, but the first pages must not
# depend on how many rows the caller asks for. So DEEP only appends to the results of SHALLOW.
SHALLOW = Depth(results=51, rows=100)
DEEP = Depth(results=1001, rows=1001)

NOTHING_YET = "Nothing is embedded yet: is manage.py embed_worker running?"
EMPTY = "The query is empty."
NO_WORDS = "The query has no words that full-text search can find."
LOADING = "The model is still being loaded."
NO_VECTOR = "The query could not be embedded, so it was searched by its words alone."
NO_WORDS_STORED = "The words of these texts are not stored: they are found by meaning alone."
NEITHER = "The query could not be embedded, and these texts are found by meaning alone."
OTHER_LANGUAGE = "The texts are stored for another language: some of the words may not be found."
NOT_COMPARED = "The least similarity was not applied, because there is no vector to compare with."
PARTIAL = "A new model is searched already, although not all rows have its vectors yet."

MOMENT_SECONDS = 0.005
"""How long to wait for the query's vector: if it comes in time, one statement finds by both."""


Item = TypeVar("Item", bound=Hashable)


FLATNESS = 20
"""The larger it is, the less the first ranks of a model stand out when several are merged.

Source: Cormack, Clarke, Buettcher, "Reciprocal Rank Fusion outperforms Condorcet", SIGIR 2009.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A query for one target. Its vector may not have arrived yet.

    ``survey`` is None if no space is active, ``pending`` if no vector was asked for.
    """

    target: Target[Any]
    text: str
    mode: Mode
    survey: Survey | None
    pending: Pending | None
    min_similarity: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The ranked rows of one target, best first. ``reach`` and ``within`` are as in ``answer``."""

    question: Question
    reach: int
    within: bool
    ranked: Sequence[Ranked] = ()
    ranking: Ranking = "none"
    degraded: bool = False
    note: str = ""

    @property
    def space(self) -> Space | None:
        return self.question.survey and self.question.survey.space

    @property
    def words(self) -> Words | None:
        return self.question.survey and self.question.survey.words


def ask(
    target: Target[Any],
    text: str,
    *,
    mode: Mode,
    language: str | None = None,
    min_similarity: float | None = None,
) -> Question:
    """Survey the target, and ask for the text's vector if the mode needs one.

    The provider of the active space embeds it. Returns before the vector has arrived.
    """
    survey = statistics.survey(target, text, language=language)
    needs_vector = survey is not None and text and mode != "lexical"
    pending = query_vectors.vectors.ask(survey.space, text) if survey and needs_vector else None
    return Question(
        target=target,
        text=text,
        mode=mode,
        survey=survey,
        pending=pending,
        min_similarity=min_similarity,
    )


def answer(question: Question, *, reach: int, within: bool | None = None) -> Answer:
    """Rank at least ``reach`` rows, if there are that many.

    ``within``: rank only rows of the queryset. False: rank all rows of the table, and let
    ``searching._page`` detect those outside the queryset. None: as ``target.narrows`` says.
    """
    target, survey = question.target, question.survey
    within = target.narrows if within is None else within
    none = Answer(question, reach, within)
    if not question.text and not question.pending:
        return replace(none, note=EMPTY)
    if survey is None:
        return replace(none, note=NOTHING_YET)
    both = retrievers.of(target, survey, within=within)
    if both is None:
        return replace(none, ranking=question.mode)
    stores_words = target.spec.stores_words
    has_words = bool(survey.words) and stores_words
    by_words = has_words and question.mode != "semantic"
    early: FoundBy = {}
    if by_words and question.pending and not question.pending.is_answered(MOMENT_SECONDS):
        # Search by words while the query is being embedded.
        early = both.find([both.lexical(depth=SHALLOW)], depth=SHALLOW)
    vector = _vector(question.pending)
    is_degraded = vector is None and question.mode != "lexical"
    by_words = has_words and (by_words or is_degraded)

    def look(depth: Depth) -> FoundBy:
        known = early if depth == SHALLOW else {}
        wanted = [both.lexical(depth=depth)] if by_words and not known else []
        if vector is not None:
            wanted.append(both.semantic(vector, depth=depth))
        return known | both.find(wanted, depth=depth)

    def near(found: FoundBy) -> dict[Any, float] | None:
        """Return the similarity of each row, if there is a least one."""
        if vector is None or question.min_similarity is None:
            return None
        known = {one.key: one.value for one in found[SEMANTIC]}
        others = [one.key for one in found.get(LEXICAL, ()) if one.key not in known]
        return known | both.similarities(others, vector)

    notes = {
        LOADING: bool(question.pending and question.pending.is_loading),
        NO_VECTOR: is_degraded and stores_words,
        NEITHER: is_degraded and not stores_words,
        NO_WORDS: not survey.words and question.mode != "semantic" and stores_words,
        NO_WORDS_STORED: question.mode == "lexical" and not stores_words,
        OTHER_LANGUAGE: by_words and survey.is_of_other_language,
        PARTIAL: survey.space.is_partial,
        NOT_COMPARED: is_degraded and question.min_similarity is not None,
    }
    return replace(
        none,
        ranked=_rank(look, near, least=question.min_similarity, reach=reach),
        ranking=_ranking(vector is not None, by_words, question.mode),
        degraded=is_degraded,
        note=" ".join(note for note, holds in notes.items() if holds),
    )


def _rank(
    look: Callable[[Depth], FoundBy],
    near: Callable[[FoundBy], dict[Any, float] | None],
    *,
    least: float | None,
    reach: int,
) -> list[Ranked]:
    """Return the rows, best first. A row that is first in each retriever has the merit 1.

    The merit goes by ranks alone: values of other spaces must not be compared with these.
    ``look`` runs the retrievers at a depth. ``near`` tells how similar what they found is, and
    what is less so than ``least`` is left out.
    """
    ranked: dict[Any, Ranked] = {}
    lowest = least_merit = 1.0
    for depth in (SHALLOW, DEEP) if reach > SHALLOW.results else (SHALLOW,):
        found = look(depth)
        similar = near(found)
        # The semantic retriever goes first: if both rank a row the same, its chunk is shown.
        asked = [name for name in (SEMANTIC, LEXICAL) if name in found]
        values = {name: {one.key: one.value for one in found[name]} for name in asked}
        matches: dict[Any, list[Matched]] = defaultdict(list)
        for name in asked:
            for rank, one in enumerate(found[name], start=1):
                matches[one.key].append(Matched(name, rank, one.value, one.chunk))
        waiting = {one.key for one in found.get(LEXICAL, ()) if one.waits}
        fused = fuse(values, only_in_one=waiting, depth=depth)
        if similar is not None and least is not None:
            fused = {key: score for key, score in fused.items() if similar.get(key, -2) >= least}
        for key, score in list(fused.items())[: min(depth.results, reach)]:
            if key not in ranked:
                # DEEP may score a row higher than SHALLOW's last, but it still comes after that.
                lowest = min(score, lowest)
                shares = len(asked) if key in waiting else 1
                ranks = sum((FLATNESS + 1) / (FLATNESS + match.rank) for match in matches[key])
                least_merit = min(shares * ranks / len(asked), least_merit)
                ranked[key] = _ranked(
                    key, lowest if len(asked) > 1 else None, least_merit, matches[key], similar
                )
    return list(ranked.values())


def fuse(
    values: Mapping[Name, Mapping[Item, float]],
    *,
    only_in_one: Collection[Item] = (),
    depth: Depth = SHALLOW,
) -> dict[Item, float]:
    """Return the items of all retrievers with their scores, best first.

    ``values`` has each retriever's items, best first, with the values that it ranks them by. A
    score is the mean over the retrievers: 1 for what is first in all, 0 for the last result of a
    depth and for what is not found. On a tie, the item of the earlier retriever comes first. Items
    in ``only_in_one`` only one retriever can find, so what they score there counts for the others
    too.

    It finds better than the fusion of ranks, which does not see by how much one is better than the
    next: ``benchmarks/NOTES.md``.

    Source: Bruch, Gai, Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", 2023.
    """
    scores: dict[Item, float] = {}
    for name, items in values.items():
        for item, part in _normalized(name, items, depth).items():
            share = 1.0 if item in only_in_one else 1.0 / len(values)
            scores[item] = scores.get(item, 0.0) + share * part
    return dict(sorted(scores.items(), key=lambda scored: -scored[1]))


def _normalized(name: Name, items: Mapping[Item, float], depth: Depth) -> dict[Item, float]:
    """Return the values from 1 for the best item to 0 for the last result, and for those after."""
    results = list(items.values())[: depth.results]
    best, last = (results[0], results[-1]) if results else (0.0, 0.0)
    if name == LEXICAL and len(results) < depth.results:
        last = 0.0  # all others have none of the words
    span = best - last
    return {
        item: max(value - last, 0.0) / span if span > 0 else 1.0 for item, value in items.items()
    }


def _ranked(
    key: Any,
    fused: float | None,
    merit: float,
    matches: Sequence[Matched],
    similar: Mapping[Any, float] | None,
) -> Ranked:
    """Return a row with the chunk of the retriever that ranks it higher.

    ``fused`` is its score. None: that of the only retriever.
    """
    best = min(matches, key=lambda match: match.rank)
    similarity = next((match.score for match in matches if match.mode == SEMANTIC), None)
    if similar is not None:
        similarity = similar[key]
    score = best.score if fused is None else fused
    return Ranked(key, best.chunk, score, similarity, merit, tuple(matches))


def _vector(pending: Pending | None) -> Vector | None:
    """Wait for the query's vector. Return None if it cannot be embedded."""
    try:
        return pending.vector() if pending else None
    except ProviderError:
        return None


def _ranking(by_meaning: bool, by_words: bool, mode: Mode) -> Ranking:
    if by_meaning and by_words:
        return "hybrid"
    if by_meaning:
        return "semantic"
    return "lexical" if by_words or mode == "lexical" else "none"
