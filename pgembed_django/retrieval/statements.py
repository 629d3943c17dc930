"""The statements of a search, with a spec's table and a queryset's keys filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from psycopg import sql

from pgembed_django.providers.base import Vector
from pgembed_django.retrieval.targets import Target
from pgembed_django.spaces.kinds import VectorIndex

# ts_rank, not ts_rank_cd: the latter asks how near to each other all the words are, and puts
# passages that lack one last (measured on the tuning questions of benchmarks/judged). The 1:
# of equals, the shorter passage.
# Whether a chunk has a vector is asked of the best alone: sorting with the vectors in tow
# costs the planner's better plans.
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

# Without the cast of a width no index has this expression: all is read that may be found.
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

# What the index is ordered by may be less than exact. What comes out is ranked again, so it
# may also come a little out of order, which finds more. The settings are a gate: evaluated
# once, before the first row is fetched, and local to the transaction of this one statement.
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

# The rows of the queryset. Named once: two arms in one statement share what it finds, and
# where there is one, Postgres plans it as if it stood in its place.
KEYS = "WITH pgembed_keys (pk) AS ({keys}) "
AMONG = "AND chunk.source_id IN (SELECT pk FROM pgembed_keys)"

# One test for each of the job table's partial indexes. Without a vector the text was stored
# a moment ago: it is not an older one. And not for the reconciler's jobs: while another
# space is filled, these vectors are as good as ever.
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

# HighlightAll: the passage as it is, HTML in it included, with nothing but the marks added.
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
    """Return the statement that finds the keys of the rows that are in the queryset.

    Raises:
        EmptyResultSet: no row can be.
    """
    compiler = target.keys.query.get_compiler(target.using)
    text, values = compiler.as_sql()
    parameters = {f"key_{number}": value for number, value in enumerate(values)}
    names = iter(parameters)
    # Named like all the others. A doubled % is one of the query's own.
    named = re.sub("%%|%s", lambda found: found[0] if found[0] == "%%" else _next(names), text)
    return Statement(named, parameters)


def lexical(target: Target[Any], *, among: str) -> str:
    """Return the arm that finds by words."""
    return _fill(target, LEXICAL, among=sql.SQL(among))


def exact(target: Target[Any], *, among: str) -> str:
    """Return the arm that reads all the vectors that may be found."""
    return _fill(target, EXACT, among=sql.SQL(among))


def by_index(target: Target[Any], *, index: VectorIndex, among: str) -> str:
    """Return the arm that reads an index of vectors."""
    return _fill(
        target,
        BY_INDEX,
        among=sql.SQL(among),
        stored=sql.SQL(f"({index.of('chunk.embedding')})"),
        operator=sql.SQL(index.kind.distance),
        wanted=sql.SQL(index.wanted),
    )


def literal(vector: Vector) -> str:
    """Return a vector as pgvector reads it: nine digits are all that a float32 has."""
    return ("[" + ",".join(["%.9g"] * len(vector)) + "]") % tuple(vector.tolist())


def passages(target: Target[Any]) -> str:
    """Return the statement that reads what is shown of chunks."""
    return sql.SQL(PASSAGES).format(table=_table(target)).as_string(None)


def _fill(target: Target[Any], text: str, **names: sql.Composable) -> str:
    fresh = sql.SQL(FRESH if target.spec.stale == "hide" else "")
    return sql.SQL(text).format(table=_table(target), fresh=fresh, **names).as_string(None)


def _table(target: Target[Any]) -> sql.SQL:
    return sql.SQL(target.table)


def _next(names: Iterator[str]) -> str:
    return f"%({next(names)})s"
