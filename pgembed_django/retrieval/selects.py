"""The statements of a search, with a spec's table and a queryset's keys filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from psycopg import sql

from pgembed_django.providers.base import Vector
from pgembed_django.retrieval.targets import Target
from pgembed_django.spaces.index_kinds import VectorIndex

# ts_rank, not ts_rank_cd: the latter asks how near to each other all the words are, and puts
# passages that lack one last (measured on the tuning questions of benchmarks/judged). The 1:
# of equals, the shorter passage.
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

# No index has this expression, as it lacks the cast to a width: so every vector is read.
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

# The order of the index may be approximate, and what it returns is ranked again anyway. So it may
# also use relaxed_order, which has a better recall. The subquery that makes the settings is
# evaluated once, before the first row is fetched; they last for this statement's transaction.
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

# The rows of the queryset, as a CTE: two arms in one statement share its result, and where there
# is only one arm, Postgres inlines it.
KEYS = "WITH pgembed_keys (pk) AS ({keys}) "
AMONG = "AND chunk.source_id IN (SELECT pk FROM pgembed_keys)"

# Leaves out rows whose text is stale: a write waits for its vectors. One NOT EXISTS for each of
# the job table's partial indexes. A chunk without a vector was stored just now, so it is fresh.
# The reconciler's jobs do not count: while they fill another space, these vectors are fresh.
FRESH = """
      AND (
          chunk.embedding IS NULL
          OR NOT EXISTS (
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

# HighlightAll: the whole passage, its HTML included, with only the marks added.
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
    """Return the statement that finds the primary keys of the queryset's rows.

    Raises:
        EmptyResultSet: the queryset cannot have any row.
    """
    compiler = target.keys.query.get_compiler(target.using)
    text, values = compiler.as_sql()
    parameters = {f"key_{number}": value for number, value in enumerate(values)}
    names = iter(parameters)
    # Parameters by name, as in all our statements. %% is a literal % of the query.
    named = re.sub("%%|%s", lambda found: found[0] if found[0] == "%%" else _next(names), text)
    return Statement(named, parameters)


def lexical(target: Target[Any], *, among: str) -> str:
    """Return the statement of the arm that finds by words."""
    return _fill(target, LEXICAL, among=sql.SQL(among))


def exact(target: Target[Any], *, among: str) -> str:
    """Return the statement of the semantic arm that reads every vector that may be found."""
    return _fill(target, EXACT, among=sql.SQL(among))


def by_index(target: Target[Any], *, index: VectorIndex, among: str) -> str:
    """Return the statement of the semantic arm that reads an index of vectors."""
    return _fill(
        target,
        BY_INDEX,
        among=sql.SQL(among),
        stored=sql.SQL(f"({index.of('chunk.embedding')})"),
        operator=sql.SQL(index.kind.distance),
        wanted=sql.SQL(index.wanted),
    )


def literal(vector: Vector) -> str:
    """Return a vector as pgvector's text form: nine digits give a float32 exactly."""
    return ("[" + ",".join(["%.9g"] * len(vector)) + "]") % tuple(vector.tolist())


def passages(target: Target[Any]) -> str:
    """Return the statement that reads the passages of chunks, with marks."""
    return sql.SQL(PASSAGES).format(table=_table(target)).as_string(None)


def _fill(target: Target[Any], text: str, **names: sql.Composable) -> str:
    fresh = sql.SQL(FRESH if target.spec.stale == "hide" else "")
    return sql.SQL(text).format(table=_table(target), fresh=fresh, **names).as_string(None)


def _table(target: Target[Any]) -> sql.SQL:
    return sql.SQL(target.table)


def _next(names: Iterator[str]) -> str:
    return f"%({next(names)})s"
