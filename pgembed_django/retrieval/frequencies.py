"""How rare words are, and how long passages: what BM25 has to know of a space's passages.

All of it is about so, and kept for some minutes: it is the same for all filters of a search.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from psycopg import sql

from pgembed_django import conf
from pgembed_django.core import database, postgres
from pgembed_django.declaration.specs import Spec
from pgembed_django.retrieval import bm25
from pgembed_django.retrieval.bm25 import Word

KEPT_SECONDS = 300.0
MOST_KEPT = 128
"""How many spaces to remember. With a schema per tenant there may be thousands."""

COUNTED = 20_000
"""How many passages to count at most. How many a larger table has, its statistics tell."""

SAMPLED = 1_000
"""Of how many passages to take the mean length."""

MOST_WORDS = 64
"""Of a query with more words, such as a pasted text, the most telling count.

Each word costs time for each passage that is ranked.
"""

MOST_COUNTED = 128
"""How many words of a query to look at: those that it repeats most, and of others the longest.

The same for all pages of a search, whatever is known of the words.
"""

MOST_REMEMBERED = 50_000
"""Of how many words of a space to remember how rare they are."""

# Of the words that many passages have, and of the spaces.
SHARES = """
    SELECT
        stats.attname::text,
        coalesce(stats.most_common_elems, stats.most_common_vals)::text::text[],
        coalesce(stats.most_common_elem_freqs, stats.most_common_freqs)
    FROM pg_class AS class
    JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
    JOIN pg_stats AS stats ON stats.schemaname = namespace.nspname
        AND stats.tablename = class.relname
        AND stats.attname IN ('fulltext', 'space_id')
    WHERE class.oid = %(table_oid)s::oid
"""

PASSAGES = """
    SELECT count(*)
    FROM (
        SELECT
        FROM {table}
        WHERE space_id = %(space)s
        LIMIT %(most)s
    ) AS few
"""

SAMPLE = """(
    SELECT fulltext
    FROM {table} TABLESAMPLE SYSTEM (%(percent)s) REPEATABLE (0)
    WHERE fulltext <> ''
      {among}
    LIMIT %(most)s
) AS few
"""
AMONG = "AND space_id = %(space)s"

LENGTH = """
    SELECT avg((SELECT sum(coalesce(cardinality(positions), 1)) FROM unnest(fulltext)))::float8
    FROM {sample}
"""

MATCHING = """
    SELECT avg((fulltext @@ %(words)s::tsquery)::int)::float8
    FROM {sample}
"""

# There is a column for each word that the statistics do not tell.
COUNTS = """
    SELECT {counts}, count(*)
    FROM (
        SELECT fulltext
        FROM {table}
        WHERE space_id = %(space)s
          AND fulltext @@ %(words)s::tsquery
        LIMIT %(most)s
    ) AS few
"""
COUNT = "count(*) FILTER (WHERE fulltext @@ {word}::tsquery)"


@dataclass(frozen=True, slots=True)
class Frequencies:
    """What is known of a space: how many ``passages``, and their mean ``length`` in words.

    ``shares`` tells which share of them has a word. It grows as words are counted. A sample of the
    table takes ``percent`` of it.
    """

    passages: float
    length: float
    shares: dict[str, float]
    percent: float


@dataclass(slots=True)
class _Kept:
    """What was last read of a space: ``at`` which moment, and in a table of how many chunks."""

    at: tuple[int, float] | None = None
    known: Frequencies | None = None


def of(using: str, spec: Spec, space_id: int, *, table_oid: int, chunks: float) -> Frequencies:
    """Return what is known of a space, in a table of about that many chunks. Negative: unknown.

    It takes the oid because, with a schema per tenant, a name means different tables depending on
    ``search_path``.
    """
    kept = _kept(using, spec.key, space_id, table_oid)
    # Each ANALYZE brings a new number of chunks: a table that grows is read again.
    at = int(time.monotonic() // KEPT_SECONDS), chunks
    if kept.known is None or kept.at != at:
        kept.known = _read(using, spec, space_id, table_oid=table_oid, chunks=chunks)
        kept.at = at
    return kept.known


def words(
    known: Frequencies, times: Mapping[str, int], *, using: str, spec: Spec, space_id: int
) -> list[Word]:
    """Return the words of a query, the most telling first, given how often it has each."""
    asked = sorted(times, key=lambda lexeme: (-times[lexeme], -len(lexeme), lexeme))[:MOST_COUNTED]
    shares = {lexeme: known.shares[lexeme] for lexeme in asked if lexeme in known.shares}
    if unknown := [lexeme for lexeme in asked if lexeme not in shares]:
        counted = _count(unknown, known, using=using, spec=spec, space_id=space_id)
        shares |= counted
        if len(known.shares) < MOST_REMEMBERED:
            known.shares.update(counted)
    k1 = conf.usable("bm25_k1")
    found = [
        bm25.word(lexeme, times=times[lexeme], share=share, passages=known.passages, k1=k1)
        for lexeme, share in shares.items()
    ]
    # Last what no passage has: otherwise it would take the place of words that some have.
    return sorted(found, key=lambda word: (not word.share, -word.bound, word.lexeme))[:MOST_WORDS]


def forget() -> None:
    """Forget what is known, so that it is read again."""
    _kept.cache_clear()


@lru_cache(maxsize=MOST_KEPT)
def _kept(using: str, spec_key: str, space_id: int, table_oid: int) -> _Kept:
    return _Kept()


def _read(using: str, spec: Spec, space_id: int, *, table_oid: int, chunks: float) -> Frequencies:
    # After the shares of words there are their least and their greatest.
    columns = {
        column: dict(zip(values or (), shares or (), strict=False))
        for column, values, shares in database.rows(using, SHARES, table_oid=table_oid)
    }
    is_large = chunks > COUNTED
    if is_large:
        passages = chunks * columns.get("space_id", {}).get(str(space_id), 1.0)
    else:
        [[passages]] = _rows(using, PASSAGES, spec, space=space_id, most=COUNTED)
    percent = min(100.0, 100.0 * SAMPLED / chunks) if is_large else 100.0
    of_space = _sampled(using, LENGTH, spec, percent, space=space_id)
    # The sample may have none of a space that has just begun. The others are of the same texts.
    length = of_space or _sampled(using, LENGTH, spec, percent) or 1.0
    return Frequencies(passages, length, columns.get("fulltext", {}), percent)


def _count(
    lexemes: Sequence[str], known: Frequencies, *, using: str, spec: Spec, space_id: int
) -> dict[str, float]:
    """Return the share of the passages that have each of these words."""
    named = {f"word_{number}": bm25.quoted(lexeme) for number, lexeme in enumerate(lexemes)}
    counts = sql.SQL(", ").join(sql.SQL(COUNT).format(word=sql.Placeholder(name)) for name in named)
    words = bm25.any_of(lexemes)
    [[*counted, every]] = _rows(
        using,
        COUNTS,
        spec,
        {"counts": counts},
        space=space_id,
        words=words,
        most=COUNTED,
        **named,
    )
    passages = max(known.passages, every, 1.0)
    if every == COUNTED:
        # More may have one of the words than were counted.
        share = _sampled(using, MATCHING, spec, known.percent, space=space_id, words=words)
        passages = every / share if share else passages
    return {lexeme: number / passages for lexeme, number in zip(lexemes, counted, strict=True)}


def _sampled(using: str, statement: str, spec: Spec, percent: float, **given: Any) -> float | None:
    """Return a mean over a sample of the table, or of the ``space`` in it."""
    among = sql.SQL(AMONG if "space" in given else "")
    table = sql.SQL(postgres.quoted_table(spec.embedding_model))
    sample = sql.SQL(SAMPLE).format(table=table, among=among)
    [[mean]] = _rows(
        using, statement, spec, {"sample": sample}, percent=percent, most=2 * SAMPLED, **given
    )
    found: float | None = mean
    return found


def _rows(
    using: str,
    statement: str,
    spec: Spec,
    names: Mapping[str, sql.Composable] | None = None,
    /,
    **given: Any,
) -> list[Any]:
    table = sql.SQL(postgres.quoted_table(spec.embedding_model))
    text = sql.SQL(statement).format(table=table, **(names or {})).as_string(None)
    return database.rows(using, text, **given)
