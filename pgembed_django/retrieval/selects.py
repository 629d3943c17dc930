"""The statements of a search, with a spec's table and a queryset's keys filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from psycopg import sql

from pgembed_django.providers.base import Vector
from pgembed_django.retrieval.targets import Target
from pgembed_django.spaces.index_kinds import VectorIndex

# ts_rank, not ts_rank_cd: the latter ranks by how close together all the words are, and puts
# passages that lack a word last (measured on the tuning questions of benchmarks/judged).
# Normalization 1 prefers the shorter of two passages that match equally well.
# Only the best chunks are joined again to see whether they have a vector: with the vectors in
# the sort, the planner misses better plans.
LEXICAL = """(
    SELECT 'lexical', best.source_id, best.id, best.value, chunk.embedding IS NULL
    FROM (
        SELECT
            chunk.source_id,
            chunk.id,
            ts_rank(chunk.fulltext, %(ranking)s::tsquery, 1) AS value
        FROM {table} AS chunk
        WHERE chunk.space_id = %(space)s
          AND chunk.fulltext @@ %(finding)s::tsquery
          {among}
          {fresh}
        ORDER BY value DESC, chunk.id
        LIMIT %(lexical_taken)s
    ) AS best
    JOIN {table} AS chunk ON chunk.id = best.id
)"""

# Without the cast to a width, the expression matches no index, so every vector is read.
EXACT = """(
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

# The rows of the queryset, as a CTE: two arms in one statement share its result, and with a
# single arm Postgres inlines it.
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
                AND job.kind IN ('write', 'manual_retry')
          )
          AND NOT EXISTS (
              SELECT
              FROM pgembed_job AS job
              WHERE job.spec = %(spec)s
                AND job.source_pk = chunk.source_id::text
                AND job.status = 'running'
                AND job.kind IN ('write', 'manual_retry')
          )
          AND NOT EXISTS (
              SELECT
              FROM pgembed_job AS job
              WHERE job.spec = %(spec)s
                AND job.source_pk = chunk.source_id::text
                AND job.status IN ('failed', 'dismissed')
                AND job.settled_at IS NULL
                AND job.kind IN ('write', 'manual_retry')
          )
      )
"""

# With HighlightAll, ts_headline returns the whole passage, HTML included, and adds only marks.
PASSAGES = """
    SELECT
        id,
        passage,
        start_offset,
        end_offset,
        text_digest,
        embedding IS NULL,
        ts_headline(%(language)s::regconfig, passage, %(words)s::tsquery, %(options)s)
    FROM {table}
    WHERE id = ANY(%(ids)s)
"""

HEADLINES = """
    SELECT ts_headline(%(language)s::regconfig, passage, %(words)s::tsquery, %(options)s)
    FROM unnest(%(passages)s::text[]) WITH ORDINALITY AS shown(passage, place)
    ORDER BY place
"""


class Statement(NamedTuple):
    """A statement, and its parameters by name."""

    text: str
    parameters: dict[str, Any]


def keys(target: Target[Any]) -> Statement:
    """Return the statement that selects the primary keys of the queryset's rows.

    Raises:
        EmptyResultSet: the queryset cannot have any rows.
    """
    compiler = target.keys.query.get_compiler(target.using)
    text, values = compiler.as_sql()
    parameters = {f"key_{number}": value for number, value in enumerate(values)}
    names = iter(parameters)
    # Name the parameters, as in all our statements. %% is a literal % in the query.
    named = re.sub("%%|%s", lambda found: found[0] if found[0] == "%%" else _next(names), text)
    return Statement(named, parameters)


def lexical(target: Target[Any], *, among: str) -> str:
    """Return the statement of the lexical arm."""
    return _fill(target, LEXICAL, among=sql.SQL(among))


def exact(target: Target[Any], *, among: str) -> str:
    """Return the statement of the semantic arm that reads every candidate's vector."""
    return _fill(target, EXACT, among=sql.SQL(among))


def by_index(target: Target[Any], *, index: VectorIndex, among: str) -> str:
    """Return the statement of the semantic arm that reads a vector index."""
    return _fill(
        target,
        BY_INDEX,
        among=sql.SQL(among),
        stored=sql.SQL(f"({index.of('chunk.embedding')})"),
        operator=sql.SQL(index.kind.distance),
        wanted=sql.SQL(index.wanted),
    )


def literal(vector: Vector) -> str:
    """Return a vector in pgvector's text form. Nine digits preserve a float32 exactly."""
    return ("[" + ",".join(["%.9g"] * len(vector)) + "]") % tuple(vector.tolist())


def passages(target: Target[Any]) -> str:
    """Return the statement that reads the passages of chunks, plain and with marks."""
    return sql.SQL(PASSAGES).format(table=_table(target)).as_string(None)


def _fill(target: Target[Any], text: str, **names: sql.Composable) -> str:
    fresh = sql.SQL(FRESH if target.spec.stale == "hide" else "")
    return sql.SQL(text).format(table=_table(target), fresh=fresh, **names).as_string(None)


def _table(target: Target[Any]) -> sql.SQL:
    return sql.SQL(target.table)


def _next(names: Iterator[str]) -> str:
    return f"%({next(names)})s"
