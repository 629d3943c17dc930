"""Rank passages by BM25: what a word can add to a score, and which passages reach one. Pure.

Postgres has no such ranking, but all that it needs: a full-text index, the words' frequencies in
the statistics of the column, and how often a passage has a word, which ``ts_rank`` tells.

Source: Robertson, Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009. The
weight of a rare word is that of Lucene, which is never negative.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from psycopg import sql

STEPS = 200
"""How finely to tell scores apart when the passages that reach one are estimated."""

MOST_OPERANDS = 400
"""How many words a condition may name. A longer one would take longer to test than it saves."""


# BM25. Of how often a passage has a word, ts_rank makes the sum of 1/1 + 1/4 + 1/9 and so on, as
# a part of the whole series: what is left of it tells how often. With the normalization 2 it
# divides by the passage's length, so the length is how much greater it is without.
# The LIMIT bounds the cost, and has each rank computed once. Only the best chunks are joined again
# to see whether they have a vector: with the vectors in the sort, the planner misses better plans.
BY_WORDS = """(
    SELECT 'lexical', best.source_id, best.id, best.value, chunk.embedding IS NULL
    FROM (
        SELECT measured.source_id, measured.id, {score} AS value
        FROM (
            SELECT
                counted.*,
                %(k1)s * (1 - %(b)s + %(b)s * ({ranks}) / {number} / per_word / %(length)s) AS norm
            FROM (
                SELECT
                    chunk.source_id,
                    chunk.id,
                    ts_rank('{{1, 1, 1, 1}}', chunk.fulltext, %(any)s::tsquery, 2) AS per_word,
                    {columns}
                FROM {table} AS chunk
                WHERE chunk.space_id = %(space)s
                  AND chunk.fulltext @@ %(finding)s::tsquery
                  {among}
                  {fresh}
                LIMIT %(most_scored)s
            ) AS counted
            OFFSET 0
        ) AS measured
        ORDER BY value DESC, id
        LIMIT %(lexical_taken)s
    ) AS best
    JOIN {table} AS chunk ON chunk.id = best.id
)"""
RANK = "ts_rank('{{1, 1, 1, 1}}', chunk.fulltext, {word}::tsquery)::float8 AS {rank}"
TIMES = "round(1 / (1.6449340668 - 1.6449340668 * {rank}) - 0.5)"
SCORE = "{bound} * {times} / ({times} + norm)"


class Word(NamedTuple):
    """A word of a query. ``share``: of the passages, how many have it."""

    lexeme: str
    bound: float
    """More than this it never adds to a passage's score."""
    share: float


def word(lexeme: str, *, times: int, share: float, passages: float, k1: float) -> Word:
    """Return a word that a query has so many ``times``, in a table of ``passages``."""
    having = min(share, 1.0) * passages
    rarity = math.log1p((passages - having + 0.5) / (having + 0.5))
    return Word(lexeme, times * rarity * (k1 + 1), share)


def threshold(words: Sequence[Word], *, passages: float, most: float) -> float:
    """Return a score that hardly more than ``most`` passages can reach. Zero: these are all.

    Takes the words as independent of each other. Passages have related words together more often,
    so more of them reach it than that.
    """
    if not words:
        return 0.0
    whole = sum(one.bound for one in words)
    # How likely a passage has words whose bounds add up to so many steps.
    likely = np.zeros(STEPS + len(words) + 1)
    likely[0] = 1.0
    for one in words:
        step = math.ceil(one.bound / whole * STEPS)
        without = likely * (1.0 - min(one.share, 1.0))
        without[step:] += likely[: len(likely) - step] * min(one.share, 1.0)
        likely = without
    reaching = passages * likely[::-1].cumsum()[::-1]
    if reaching[1] <= most:
        return 0.0
    enough = int(np.argmax(reaching <= most)) if reaching[-1] <= most else STEPS
    return min(enough, STEPS) / STEPS * whole


def condition(words: Sequence[Word], *, least: float) -> str:
    """Return a tsquery that finds all passages that can score ``least``, and few that cannot.

    Source: Turtle, Flood, "Query Evaluation: Strategies and Optimizations", 1995 (MaxScore).
    """
    ordered = sorted(words, key=lambda one: -one.bound)
    if least <= 0.0:
        return any_of([one.lexeme for one in ordered])
    rest = [*accumulate((one.bound for one in reversed(ordered)), initial=0.0)][::-1]
    found = ""
    for depth in range(len(ordered) + 1):
        deeper = _reaching(ordered, rest, 0, least * (1.0 - 1e-9), depth)
        if found and (deeper == found or deeper.count("'") > 2 * MOST_OPERANDS):
            break
        found = deeper
    return found


def _reaching(
    words: Sequence[Word], rest: Sequence[float], at: int, least: float, depth: int
) -> str:
    """Return the condition that the words from the one ``at`` a place on can add up to ``least``.

    ``rest``: what the words from each place on add up to. ``depth``: how many words to name that
    a passage has to have together. Beyond these, one of the words is enough without which the
    others cannot reach it.
    """
    needed = next(place for place in range(at, len(words)) if rest[place + 1] < least)
    if depth == 0 or least <= words[needed].bound:
        return any_of([one.lexeme for one in words[at : needed + 1]])
    parts = []
    for place in range(at, needed + 1):
        name = quoted(words[place].lexeme)
        left = least - words[place].bound
        if left > 0.0:
            name = f"{name} & ({_reaching(words, rest, place + 1, left, depth - 1)})"
        parts.append(name)
    return " | ".join(parts)


def any_of(lexemes: Iterable[str]) -> str:
    """Return a tsquery, as text, that finds passages with any of these lexemes."""
    return " | ".join(map(quoted, lexemes))


def quoted(lexeme: str) -> str:
    """Return the tsquery, as text, that finds passages with a lexeme."""
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"


@cache
def of_words(number: int) -> dict[str, sql.SQL]:
    """Return the parts of ``BY_WORDS`` that there are of each word."""
    ranks = [sql.Identifier(f"rank_{one}") for one in range(number)]
    times = [sql.SQL(TIMES).format(rank=rank) for rank in ranks]
    parts = {
        "score": sql.SQL(" + ").join(
            sql.SQL(SCORE).format(bound=sql.Placeholder(f"bound_{one}"), times=times[one])
            for one in range(number)
        ),
        "ranks": sql.SQL(" + ").join(ranks),
        "number": sql.Literal(number),
        "columns": sql.SQL(", ").join(
            sql.SQL(RANK).format(word=sql.Placeholder(f"word_{one}"), rank=ranks[one])
            for one in range(number)
        ),
    }
    return {name: sql.SQL(part.as_string(None)) for name, part in parts.items()}
