"""The lexical retriever alone, BM25, beside what Postgres has: ``ts_rank`` over any of the words.

The bars are for 200,000 rows.

Both are given the query's words. ``ts_rank`` leaves out a query's most common words, so that it
ranks some 20,000 passages at most, unless there is no other word.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db import connection

MOST_P50, MOST_P99 = 0.5, 1.0
MOST_MATCHES = 20_000

TS_RANK = """
    SELECT source_id, id, ts_rank(fulltext, %(ranking)s::tsquery, 1) AS rank
    FROM app_articleembedding
    WHERE space_id = %(space)s
      AND fulltext @@ %(finding)s::tsquery
    ORDER BY rank DESC, id
    LIMIT 150
"""
COMMONEST = """
    SELECT word
    FROM pg_stats,
        unnest(most_common_elems::text::text[], most_common_elem_freqs) AS told (word, share)
    WHERE tablename = 'app_articleembedding'
      AND attname = 'fulltext'
      AND word ~ '^[a-z]+$'
    ORDER BY abs(share - 0.5)
    LIMIT 1
"""


def measure(questions: Sequence[str], *, rounds: int) -> dict[str, Any]:
    """Print how long both take for the questions, and for a word that half of the rows have."""
    with connection.cursor() as cursor:
        cursor.execute(COMMONEST)
        [common] = cursor.fetchone() or ("",)
    asked = {"the questions": [*questions] * rounds, f"the word {common!r}": [common] * 20}
    return {name: _compare(name, texts) for name, texts in asked.items()}


def is_missed(lines: Mapping[str, Mapping[str, float]]) -> bool:
    """Return whether a bar was missed."""
    return any(line["p50"] > MOST_P50 or line["p99"] > MOST_P99 for line in lines.values())


def _compare(name: str, texts: Sequence[str]) -> dict[str, float]:
    from benchmarks.app.models import Article
    from pgembed_django.retrieval import fusion, retrievers, targets
    from pgembed_django.retrieval import statistics as read

    seconds: dict[str, list[float]] = {"BM25": [], "ts_rank": []}
    target = targets.of(Article, name=None)
    for number, text in enumerate(texts):
        survey = read.survey(target, text)
        both = retrievers.of(target, survey, within=False)
        if not survey.words:
            continue
        prepared = _prepared(both, survey)

        def by_bm25(both: Any = both) -> None:
            both.find([both.lexical(depth=fusion.SHALLOW)], depth=fusion.SHALLOW)

        def by_ts_rank(prepared: Any = prepared) -> None:
            with connection.cursor() as cursor:
                cursor.execute(TS_RANK, prepared)
                cursor.fetchall()

        sides: dict[str, Callable[[], None]] = {"BM25": by_bm25, "ts_rank": by_ts_rank}
        for side in sorted(sides, reverse=bool(number % 2)):
            started = time.perf_counter()
            sides[side]()
            seconds[side].append(time.perf_counter() - started)
    p50 = {side: statistics.median(took) for side, took in seconds.items()}
    p99 = {side: sorted(took)[int(len(took) * 0.99) - 1] for side, took in seconds.items()}
    line = {
        "p50": p50["BM25"] / p50["ts_rank"],
        "p99": p99["BM25"] / p99["ts_rank"],
        **{f"{side} p50 ms": p50[side] * 1000 for side in seconds},
        **{f"{side} p99 ms": p99[side] * 1000 for side in seconds},
    }
    print(
        f"by words, {name}: BM25 {line['BM25 p50 ms']:.1f} and {line['BM25 p99 ms']:.1f} ms, "
        f"ts_rank {line['ts_rank p50 ms']:.1f} and {line['ts_rank p99 ms']:.1f} ms; "
        f"p50 {line['p50']:.2f} times, to reach: {MOST_P50}; "
        f"p99 {line['p99']:.2f} times, to reach: {MOST_P99}",
        flush=True,
    )
    return line


def _prepared(both: Any, survey: Any) -> dict[str, Any]:
    """Return what the statement by hand is given: the words, and the rarest of them."""
    from pgembed_django.retrieval import bm25

    words = sorted(both.words, key=lambda word: word.share)
    finding, matches = [], 0.0
    for word in words:
        matches += word.share * survey.chunks
        if finding and matches > MOST_MATCHES:
            break
        finding.append(word.lexeme)
    return {
        "space": survey.space.pk,
        "ranking": survey.words.any,
        "finding": bm25.any_of(finding),
    }
