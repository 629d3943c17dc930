"""The best hand-written SQL for what a hybrid search finds: one statement, no checks.

It is given what a search has to find out: the space and its width, how rare the words are, how
long passages are, which of them can be among the best fifty, and the best plan. It relies on each
row having exactly one chunk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db import connection

SESSION = """
    SELECT
        set_config('hnsw.iterative_scan', 'relaxed_order', false),
        set_config('hnsw.ef_search', '200', false)
"""

PASSING = "SELECT id FROM app_article WHERE is_public AND views < %(below)s"

HYBRID = """
    WITH {passing}
    near AS MATERIALIZED (
        SELECT source_id, id, value
        FROM (
            SELECT source_id, id, 1 - ({distance}) AS value
            FROM app_articleembedding
            WHERE space_id = %(space)s {filter}
            ORDER BY {distance}
            LIMIT 150
        ) AS nearest
        ORDER BY value DESC, id
        LIMIT 100
    ),
    counted AS MATERIALIZED (
        SELECT source_id, id, {counts}, ts_rank(%(ones)s, fulltext, %(any)s::tsquery, 2) AS per_word
        FROM app_articleembedding
        WHERE space_id = %(space)s {filter}
          AND fulltext @@ %(finding)s::tsquery
    ),
    normed AS MATERIALIZED (
        SELECT *, {sum} / per_word AS norm
        FROM counted
    ),
    worded AS MATERIALIZED (
        SELECT source_id, id, {score} AS value
        FROM normed
        ORDER BY value DESC, id
        LIMIT 100
    ),
    fused AS (
        SELECT source_id, min(id) AS id, sum(part) AS score
        FROM (
            SELECT
                source_id,
                id,
                0.5 * greatest(value - last, 0) / nullif(max(value) OVER () - last, 0) AS part
            FROM near, coalesce((SELECT value FROM near OFFSET 50 LIMIT 1), -1) AS last
            UNION ALL
            SELECT
                source_id,
                id,
                0.5 * greatest(value - last, 0) / nullif(max(value) OVER () - last, 0)
            FROM worded, coalesce((SELECT value FROM worded OFFSET 50 LIMIT 1), 0) AS last
        ) AS found
        GROUP BY source_id
        ORDER BY score DESC NULLS LAST
        LIMIT 10
    )
    SELECT
        article.*,
        fused.score,
        chunk.passage,
        chunk.start_offset,
        chunk.end_offset,
        ts_headline(
            'english', chunk.passage, %(any)s::tsquery,
            'HighlightAll=true, StartSel=<mark>, StopSel=</mark>'
        )
    FROM fused
    JOIN app_article AS article ON article.id = fused.source_id
    JOIN app_articleembedding AS chunk ON chunk.id = fused.id
    ORDER BY fused.score DESC
"""

# What is left of the sum of 1/1 + 1/4 + 1/9 and so on tells how often a passage has the word.
COUNT = "1.6449340668 * ts_rank(%(ones)s, fulltext, %(word_{at})s::tsquery) AS r{at}"
SCORE = """
    {bound} * round(1 / (1.6449340668 - r{at}) - 0.5)
        / (round(1 / (1.6449340668 - r{at}) - 0.5) + {short} + {long} * norm)
"""

BY_INDEX = "embedding::vector(256) <=> %(vector)s"
BY_READING = "embedding <=> %(vector)s"


class Way(NamedTuple):
    """Whether the vector index is used, and whether both retrievers share the filtered rows."""

    distance: str
    is_shared: bool = False


WAYS = {
    "index": Way(BY_INDEX),
    "index, shared": Way(BY_INDEX, is_shared=True),
    "all": Way(BY_READING),
    "all, shared": Way(BY_READING, is_shared=True),
}


class Prepared(NamedTuple):
    """A statement with its parameters."""

    statement: str
    parameters: dict[str, Any]


def prepare(question: str, *, space: Any, below: int | None, way: str) -> Prepared:
    """Return the statement for a question, with all that a search would have to find out."""
    from benchmarks.app.models import Article
    from pgembed_django import conf
    from pgembed_django.retrieval import (
        bm25,
        fusion,
        query_vectors,
        retrievers,
        statistics,
        targets,
    )

    rows = Article.objects.filter(views__lt=below) if below else Article.objects.all()
    target = targets.of(rows, name=None)
    survey: Any = statistics.survey(target, question)
    both: Any = retrievers.of(target, survey, within=bool(below))
    depth = fusion.SHALLOW
    best = both.find([both.lexical(depth=depth)], depth=depth)["lexical"]
    least = best[depth.results - 1].value if len(best) >= depth.results else 0.0
    vector = query_vectors.vectors.ask(space, question).vector()
    with connection.cursor() as cursor:
        cursor.execute(SESSION)
    distance, is_shared = WAYS[way]
    passing = "SELECT id FROM passing" if is_shared else PASSING
    k1, b = conf.current().bm25_k1, conf.current().bm25_b
    places = range(len(both.words))
    return Prepared(
        HYBRID.format(
            passing=f"passing AS MATERIALIZED ({PASSING})," if is_shared else "",
            distance=distance,
            filter=f"AND source_id IN ({passing})" if below else "",
            counts=", ".join(COUNT.format(at=at) for at in places),
            sum="(" + " + ".join(f"r{at}" for at in places) + f") / 1.6449340668 / {len(places)}",
            score=" + ".join(
                SCORE.format(
                    at=at, bound=word.bound, short=k1 * (1 - b), long=k1 * b / both.known.length
                )
                for at, word in enumerate(both.words)
            ),
        ),
        {
            "space": space.pk,
            "below": below,
            "ones": "{1, 1, 1, 1}",
            "any": bm25.any_of(word.lexeme for word in both.words),
            "finding": bm25.condition(both.words, least=least),
            "vector": retrievers.literal(vector),
            **{f"word_{at}": bm25.quoted(word.lexeme) for at, word in enumerate(both.words)},
        },
    )


def run(prepared: Prepared) -> list[int]:
    """Run the statement, and return the keys that it found."""
    with connection.cursor() as cursor:
        cursor.execute(prepared.statement, prepared.parameters)
        return [row[0] for row in cursor.fetchall()]
