"""The two retrievers of a search: by words, and by meaning. Each finds one chunk per row.

The planner at the end chooses how vectors are read: all of them, or through the index.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from django.core.exceptions import EmptyResultSet
from django.db import connections, transaction
from django.db.models import Min
from pgvector.django import CosineDistance
from psycopg import sql

from pgembed_django import conf
from pgembed_django.core import database
from pgembed_django.providers.base import Vector
from pgembed_django.retrieval import bm25, frequencies
from pgembed_django.retrieval.bm25 import Word
from pgembed_django.retrieval.frequencies import Frequencies
from pgembed_django.retrieval.statistics import Survey
from pgembed_django.retrieval.targets import Statement, Target

CHUNKS_PER_ROW_AT_FIRST = 1.5
"""How many chunks the first statement fetches for each row that is wanted."""

LEXICAL: Final = "lexical"
SEMANTIC: Final = "semantic"

SCANNED_PER_READ = 5
"""Visiting one neighbour in an index costs as much as reading this many vectors (measured)."""

MOST_CANDIDATES = 1000

MOST_SCORED = 10_000
"""How many passages to score at most: those that have most of the query's rarest words."""

SCORED_AT_FIRST = 20
"""How many passages the first statement is to score, for each that is wanted."""

# Without the cast to a width, the expression matches no index, so every vector is read.
BY_READING = """(
    SELECT
        'semantic',
        chunk.source_id,
        chunk.id,
        chunk.embedding <=> %(vector)s AS value,
        false
    FROM {table} AS chunk
    WHERE chunk.space_id = %(space)s
      AND chunk.embedding IS NOT NULL
      {among}
      {fresh}
    ORDER BY value, chunk.id
    LIMIT %(semantic_taken)s
)"""

# The index order may be approximate, since the chunks are ranked again anyway. That allows
# relaxed_order, which has better recall. The subquery with set_config is evaluated once, before
# the first row is fetched. Its settings last until the end of the transaction.
BY_INDEX = """(
    SELECT
        'semantic',
        chunk.source_id,
        chunk.id,
        chunk.embedding <=> %(vector)s,
        false
    FROM {table} AS chunk
    WHERE chunk.space_id = %(space)s
      AND chunk.embedding IS NOT NULL
      AND (
          SELECT
              set_config('hnsw.iterative_scan', 'relaxed_order', true)
              || set_config('hnsw.ef_search', %(candidates)s::text, true)
      ) <> ''
      {among}
      {fresh}
    ORDER BY {stored} {operator} {wanted}
    LIMIT %(semantic_taken)s
)"""

# The rows of the queryset, as a CTE: two retrievers in one statement share its result, and with a
# single retriever Postgres inlines it.
KEYS = "WITH pgembed_keys (pk) AS ({keys}) "
AMONG = "AND chunk.source_id IN (SELECT pk FROM pgembed_keys)"

# Leaves out stale rows: those with a write whose vectors are not stored yet. There is one
# NOT EXISTS for each partial index of the job table. A chunk without a vector has just been
# stored, so it is fresh. The reconciler's jobs do not count: while they fill another space, the
# vectors of this one are fresh. If they could not fill this one, when it was reopened, chunks of a
# former text are marked: that has the digest 'hidden'.
FRESH = """
      AND (
          chunk.embedding IS NULL
          OR chunk.text_digest <> 'hidden'
          AND NOT EXISTS (
              SELECT
              FROM pgembed_job AS job
              WHERE job.spec = %(spec)s
                AND job.source_pk = chunk.source_id::text
                AND job.status = 'pending'
                AND job.is_awaited
          )
          AND NOT EXISTS (
              SELECT
              FROM pgembed_job AS job
              WHERE job.spec = %(spec)s
                AND job.source_pk = chunk.source_id::text
                AND job.status = 'running'
                AND job.is_awaited
          )
          AND NOT EXISTS (
              SELECT
              FROM pgembed_job AS job
              WHERE job.spec = %(spec)s
                AND job.source_pk = chunk.source_id::text
                AND job.status IN ('failed', 'dismissed')
                AND job.settled_at IS NULL
                AND job.is_awaited
          )
      )
"""


class Depth(NamedTuple):
    """How many rows to rank: up to ``rows``, and at least ``results`` if that many match."""

    results: int
    rows: int


class Found(NamedTuple):
    """A row's best chunk. ``value`` is its cosine similarity, or its score of BM25."""

    key: Any
    chunk: int
    value: float
    waits: bool
    """The chunk has no vector yet: only the lexical retriever can find it."""


Name = Literal["semantic", "lexical"]
FoundBy = dict[Name, list[Found]]
"""What each retriever found, best first, by the retriever's name."""


class Retriever(NamedTuple):
    """A statement that finds the best chunks. ``spread``: fetch this many times as many."""

    name: Name
    text: str
    parameters: dict[str, Any]
    spread: int = 1
    exact: Retriever | None = None
    """If this one reads an index, which may return too few rows: the same one without it."""
    least: float = 0.0
    """Of what scores less than this, it may miss some."""


@dataclass(frozen=True)
class Retrievers:
    """Makes and runs those of one search. ``among`` selects the rows to rank. None: all."""

    target: Target[Any]
    survey: Survey
    among: Statement | None

    def lexical(self, *, depth: Depth) -> Retriever:
        """Return the retriever that finds the chunks that match the query's words best."""
        most = min(SCORED_AT_FIRST * self._first(depth), MOST_SCORED)
        return self._by_words(self._threshold(most))

    def _by_words(self, least: float) -> Retriever:
        words, required = self.words, self.survey.words.required
        finding = bm25.condition(words, least=least)
        text = self._fill(bm25.BY_WORDS, **bm25.of_words(len(words)))
        wanted: dict[str, Any] = {
            "finding": f"({required}) & ({finding})" if required else finding,
            "any": bm25.any_of([word.lexeme for word in words]),
            "k1": conf.usable("bm25_k1"),
            "b": conf.usable("bm25_b"),
            "length": self.known.length,
            "most_scored": MOST_SCORED,
        }
        for number, word in enumerate(words):
            wanted |= {f"word_{number}": bm25.quoted(word.lexeme), f"bound_{number}": word.bound}
        return Retriever(LEXICAL, text, self._parameters | wanted, least=least)

    @cached_property
    def known(self) -> Frequencies:
        """What is known of all passages of the space, whichever pass the filter."""
        return frequencies.of(
            self.target.using,
            self.target.spec,
            self.survey.space.pk,
            table_oid=self.survey.table_oid,
            chunks=self.survey.chunks,
        )

    @cached_property
    def words(self) -> list[Word]:
        """The words of the query, the most telling first."""
        return frequencies.words(
            self.known,
            self.survey.words.times,
            using=self.target.using,
            spec=self.target.spec,
            space_id=self.survey.space.pk,
        )

    def _threshold(self, most: int) -> float:
        """Return a score that about ``most`` of the passages to rank can reach. Zero: all can."""
        if self.survey.words.is_narrow:
            return 0.0  # few match it, and those that do may have few of the words
        passages = self.known.passages
        least = bm25.threshold(self.words, passages=passages, most=most)
        if least and self._passing is not None:
            passages = min(passages, self._passing * min(self.survey.chunks_per_row, 2.0))
            least = bm25.threshold(self.words, passages=passages, most=most)
        return least

    @cached_property
    def _passing(self) -> int | None:
        """How many rows pass the filter, as the planner expects. None: there is no filter."""
        return estimate(self.target.using, self.among) if self.among else None

    def semantic(self, vector: Vector, *, depth: Depth) -> Retriever:
        """Return the retriever that finds the chunks nearest to the query's vector."""
        wanted = {"vector": literal(vector)}
        exact = Retriever(SEMANTIC, self._fill(BY_READING), self._parameters | wanted)
        index = self.survey.vector_index
        if index is None or is_exact(self._passing, chunks=self.survey.chunks, taken=depth.rows):
            return exact
        text = self._fill(
            BY_INDEX,
            stored=sql.SQL(f"({index.of('chunk.embedding')})"),
            operator=sql.SQL(index.kind.distance),
            wanted=sql.SQL(index.wanted),
        )
        return Retriever(SEMANTIC, text, exact.parameters, index.kind.spread, exact)

    def similarities(self, keys: Sequence[Any], vector: Vector) -> dict[Any, float]:
        """Return how similar rows are to the query's vector, by key. Some may have no vectors."""
        if not keys:
            return {}
        chunks: Any = self.target.spec.embedding_model._base_manager.using(self.target.using)
        near = chunks.filter(
            source_id__in=keys, space_id=self.survey.space.pk, embedding__isnull=False
        )
        nearest = near.values_list("source_id").annotate(
            distance=Min(CosineDistance("embedding", vector))
        )
        return {key: 1.0 - distance for key, distance in nearest.order_by()}

    def find(self, retrievers: Sequence[Retriever], *, depth: Depth) -> FoundBy:
        """Return what the retrievers find, one chunk per row."""
        if len(retrievers) > 1 and any(one.exact for one in retrievers):
            # A statement for each: the set_config of an index scan rules out a parallel plan.
            return {one.name: self.find([one], depth=depth)[one.name] for one in retrievers}
        taken = {one.name: self._first(depth) * one.spread for one in retrievers}
        looks = self._look(retrievers, taken)
        return {
            one.name: self._best(one, looks[one.name], taken=taken[one.name], depth=depth)
            for one in retrievers
        }

    def _fill(self, text: str, **names: sql.Composable) -> str:
        """Return a statement with the spec's table and conditions filled in."""
        names |= {
            "table": sql.SQL(self.target.table),
            "among": sql.SQL(AMONG if self.among else ""),
            "fresh": sql.SQL(FRESH if self.target.spec.stale == "hide" else ""),
        }
        return sql.SQL(text).format(**names).as_string(None)

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

    def _look(self, retrievers: Sequence[Retriever], taken: Mapping[Name, int]) -> FoundBy:
        """Return the best chunks of each retriever, at most ``taken`` of them, in any order."""
        if not retrievers:
            return {}
        using = self.target.using
        parameters: dict[str, Any] = {}
        for retriever in retrievers:
            parameters |= retriever.parameters | {f"{retriever.name}_taken": taken[retriever.name]}
            if retriever.exact:
                parameters["candidates"] = candidates(taken[retriever.name])
        with leaving_no_settings(using) if "candidates" in parameters else nullcontext():
            text = "UNION ALL".join(retriever.text for retriever in retrievers)
            keys = KEYS.format(keys=self.among.text) if self.among else ""
            rows = database.rows(using, keys + text, **parameters)
        looks: FoundBy = {retriever.name: [] for retriever in retrievers}
        read = _key_reader(self.target)
        for name, key, chunk, value, waits in rows:
            looks[name].append(Found(read(key) if read else key, chunk, value, waits))
        return looks

    def _best(
        self, retriever: Retriever, found: list[Found], *, taken: int, depth: Depth
    ) -> list[Found]:
        """Return the best chunk of each row. Fetches more if ``found`` covers too few rows."""
        sign = -1 if retriever.name == LEXICAL else 1
        while True:
            # UNION guarantees no order, and an index may return chunks slightly out of order.
            best = _best_of_each(found, sign=sign)
            if len(best) >= depth.results or len(found) < taken:
                break
            taken *= 2  # a few long rows hold all the best chunks
            found = self._look([retriever], {retriever.name: taken})[retriever.name]
        if retriever.exact and len(best) < depth.results:
            # The index scan ended before enough rows had passed the filter.
            return self.find([retriever.exact], depth=depth)[retriever.name]
        if lower := self._lower(retriever.least, list(best.values()), depth=depth):
            # It finds these too, unless more passages match than are scored.
            more = self.find([lower], depth=depth)[retriever.name]
            best = _best_of_each([*best.values(), *more], sign=sign)
        rows = list(best.values())[: depth.rows]
        if retriever.name == LEXICAL:
            return rows
        return [one._replace(value=1.0 - one.value) for one in rows]

    def _lower(self, least: float, found: Sequence[Found], *, depth: Depth) -> Retriever | None:
        """Return a retriever with a lower threshold, if with this one results may be missed."""
        is_enough = len(found) >= depth.results
        reached = found[depth.results - 1].value if is_enough else 0.0
        if reached >= least:
            return None
        lower = max(reached, self._threshold(MOST_SCORED))
        if lower < least:
            return self._by_words(lower)
        return None if is_enough else self._by_words(0.0)


def _best_of_each(found: Sequence[Found], *, sign: int) -> dict[Any, Found]:
    """Return the best chunk of each row, the best row first."""
    best: dict[Any, Found] = {}
    for chunk in sorted(found, key=lambda chunk: (sign * chunk.value, chunk.chunk)):
        best.setdefault(chunk.key, chunk)
    return best


def of(target: Target[Any], survey: Survey, *, within: bool) -> Retrievers | None:
    """Return the retrievers of a search, or None if the queryset cannot have any rows.

    ``within``: rank only rows of the queryset.
    """
    try:
        return Retrievers(target, survey, target.keys_statement() if within else None)
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


def literal(vector: Vector) -> str:
    """Return a vector in pgvector's text form. Nine digits preserve a float32 exactly."""
    return ("[" + ",".join(["%.9g"] * len(vector)) + "]") % tuple(vector.tolist())


def is_exact(passing: int | None, *, chunks: float, taken: int) -> bool:
    """Return whether reading the vectors of the rows that pass is cheaper than reading the index.

    The index has the ``chunks`` chunks of all rows, so to return ``taken`` of those that pass it
    visits about ``chunks * taken / passing``. None: all rows pass.
    """
    if passing is None:
        return False
    return passing * passing <= SCANNED_PER_READ * max(chunks, 1.0) * taken


def estimate(using: str, keys: Statement) -> int:
    """Return how many rows the planner expects, without running the statement."""
    with connections[using].cursor() as cursor:
        # Parameters are given even if empty, so that %% in the queryset's SQL becomes %.
        database.run(cursor, "EXPLAIN (FORMAT JSON) " + keys.text, keys.parameters)
        [[plan]] = cursor.fetchall()
    # A connection may return JSON as a string, or already parsed.
    [explained] = json.loads(plan) if isinstance(plan, str) else plan
    return int(explained["Plan"]["Plan Rows"])


def candidates(taken: int) -> int:
    """Return the ``hnsw.ef_search`` with which the index returns that many chunks."""
    least: int = conf.usable("hnsw_ef_search")
    return min(max(taken, least), MOST_CANDIDATES)


@contextmanager
def leaving_no_settings(using: str) -> Iterator[None]:
    """Undo the settings that a statement makes inside the caller's transaction."""
    if connections[using].get_autocommit():
        yield
        return
    with transaction.atomic(using=using):
        yield
        # Releasing the savepoint would keep the settings; rolling back to it does not.
        transaction.set_rollback(True, using=using)
