"""The two arms of a search: by words, and by meaning. Each finds one chunk per row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.core.exceptions import EmptyResultSet
from django.db import connections

from pgembed_django import database
from pgembed_django.providers.base import Vector
from pgembed_django.retrieval import routes, selects
from pgembed_django.retrieval.selects import Statement
from pgembed_django.retrieval.surveying import Survey
from pgembed_django.retrieval.targets import Target

CHUNKS_PER_ROW_AT_FIRST = 1.5
"""How many chunks the first statement fetches for each row that is wanted."""

LEXICAL, SEMANTIC = "lexical", "semantic"


class Depth(NamedTuple):
    """How many rows an arm ranks: up to ``rows``, and at least ``results`` if that many match."""

    results: int
    rows: int


class Found(NamedTuple):
    """A row's best chunk. ``value`` is its cosine similarity, or its ``ts_rank``."""

    key: Any
    chunk: int
    value: float
    waits: bool
    """The chunk has no vector yet: only the lexical arm can find it."""


FoundBy = dict[str, list[Found]]
"""What each arm found, best first, by the arm's name."""


class Arm(NamedTuple):
    """A statement that finds the best chunks. ``spread``: fetch this many times as many."""

    name: str
    text: str
    parameters: dict[str, Any]
    spread: int = 1
    exact: Arm | None = None
    """If this arm reads an index, which may return too few rows: the same arm without it."""


@dataclass(frozen=True, slots=True)
class Arms:
    """Builds and runs the arms of one search. ``among`` selects the rows to rank. None: all."""

    target: Target[Any]
    survey: Survey
    among: Statement | None

    def lexical(self) -> Arm:
        """Return the arm that finds the chunks that match the query's words best."""
        words = {"finding": self.survey.words.finding, "ranking": self.survey.words.ranking}
        text = selects.lexical(self.target, among=self._among)
        return Arm(LEXICAL, text, self._parameters | words)

    def semantic(self, vector: Vector, *, depth: Depth) -> Arm:
        """Return the arm that finds the chunks nearest to the query's vector."""
        wanted = {"vector": selects.literal(vector)}
        text = selects.exact(self.target, among=self._among)
        exact = Arm(SEMANTIC, text, self._parameters | wanted)
        index = self.survey.vector_index
        if index is None or routes.is_exact(
            self.target.using, self.among, chunks=self.survey.chunks, taken=depth.rows
        ):
            return exact
        text = selects.by_index(self.target, index=index, among=self._among)
        return Arm(SEMANTIC, text, exact.parameters, index.kind.spread, exact)

    def find(self, arms: Sequence[Arm], *, depth: Depth) -> FoundBy:
        """Return what the arms find, one chunk per row."""
        if len(arms) > 1 and any(arm.exact for arm in arms):
            # One statement per arm: the set_config of an index scan rules out a parallel plan.
            return {arm.name: self.find([arm], depth=depth)[arm.name] for arm in arms}
        taken = {arm.name: self._first(depth) * arm.spread for arm in arms}
        looks = self._look(arms, taken)
        return {
            arm.name: self._best(arm, looks[arm.name], taken=taken[arm.name], depth=depth)
            for arm in arms
        }

    @property
    def _among(self) -> str:
        return selects.AMONG if self.among else ""

    @property
    def _parameters(self) -> dict[str, Any]:
        keys = self.among.parameters if self.among else {}
        return {"space": self.survey.space.pk, "spec": self.target.spec.key, **keys}

    def _first(self, depth: Depth) -> int:
        """Return how many chunks the first statement fetches for the rows of a depth."""
        chunks_per_row = CHUNKS_PER_ROW_AT_FIRST
        if depth.rows > depth.results:  # else one row with two chunks would cost another statement
            chunks_per_row = min(chunks_per_row, self.survey.chunks_per_row)
        return int(depth.rows * chunks_per_row)

    def _look(self, arms: Sequence[Arm], taken: Mapping[str, int]) -> FoundBy:
        """Return the best chunks of each arm, at most ``taken`` of them, in any order."""
        if not arms:
            return {}
        using = self.target.using
        parameters: dict[str, Any] = {}
        for arm in arms:
            parameters |= arm.parameters | {f"{arm.name}_taken": taken[arm.name]}
            if arm.exact:
                parameters["candidates"] = routes.candidates(taken[arm.name])
        with routes.leaving_no_settings(using) if "candidates" in parameters else nullcontext():
            text = "UNION ALL".join(arm.text for arm in arms)
            keys = selects.KEYS.format(keys=self.among.text) if self.among else ""
            rows = database.rows(using, keys + text, **parameters)
        looks: FoundBy = {arm.name: [] for arm in arms}
        read = _key_reader(self.target)
        for name, key, chunk, value, waits in rows:
            looks[name].append(Found(read(key) if read else key, chunk, value, waits))
        return looks

    def _best(self, arm: Arm, found: list[Found], *, taken: int, depth: Depth) -> list[Found]:
        """Return the best chunk of each row. Fetches more if ``found`` covers too few rows."""
        sign = -1 if arm.name == LEXICAL else 1
        while True:
            best: dict[Any, Found] = {}
            # UNION guarantees no order, and an index may return chunks slightly out of order.
            for chunk in sorted(found, key=lambda chunk: (sign * chunk.value, chunk.chunk)):
                best.setdefault(chunk.key, chunk)
            if len(best) >= depth.results or len(found) < taken:
                break
            taken *= 2  # a few long rows hold all the best chunks
            found = self._look([arm], {arm.name: taken})[arm.name]
        if arm.exact and len(best) < depth.results:
            # The index scan ended before enough rows had passed the filter.
            return self.find([arm.exact], depth=depth)[arm.name]
        rows = list(best.values())[: depth.rows]
        if arm.name == LEXICAL:
            return rows
        return [one._replace(value=1.0 - one.value) for one in rows]


def of(target: Target[Any], survey: Survey, *, within: bool) -> Arms | None:
    """Return the arms of a search, or None if the queryset cannot have any rows.

    ``within``: rank only rows of the queryset.
    """
    try:
        return Arms(target, survey, selects.keys(target) if within else None)
    except EmptyResultSet:
        return None


def _key_reader(target: Target[Any]) -> Callable[[Any], Any] | None:
    """Return a function that converts a stored key to the instance's ``pk``. None: same value."""
    connection = connections[target.using]
    field: Any = target.spec.model._meta.pk
    while field.remote_field:
        field = field.target_field
    converters = field.get_db_converters(connection)
    if not converters:
        return None

    def read(key: Any) -> Any:
        for converter in converters:
            key = converter(key, None, connection)
        return key

    return read
