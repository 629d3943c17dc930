"""The best hand-written SQL for what a hybrid search finds: one statement, no checks.

It is given what a search has to find out: the space and its width, the tsqueries, and the best
plan. It relies on each row having exactly one chunk.
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
        SELECT source_id, id, row_number() OVER (ORDER BY distance, id) AS place
        FROM (
            SELECT source_id, id, {distance} AS distance
            FROM app_articleembedding
            WHERE space_id = %(space)s {filter}
            ORDER BY distance
            LIMIT 150
        ) AS nearest
        ORDER BY distance, id
        LIMIT 100
    ),
    worded AS MATERIALIZED (
        SELECT source_id, id, row_number() OVER (ORDER BY rank DESC, id) AS place
        FROM (
            SELECT source_id, id, ts_rank(fulltext, %(ranking)s::tsquery, 1) AS rank
            FROM app_articleembedding
            WHERE space_id = %(space)s {filter}
              AND fulltext @@ %(finding)s::tsquery
            ORDER BY rank DESC, id
            LIMIT 100
        ) AS best
    ),
    fused AS (
        SELECT source_id, min(id) AS id, sum(1.0 / (20 + place)) AS score
        FROM (SELECT * FROM near UNION ALL SELECT * FROM worded) AS found
        GROUP BY source_id
        ORDER BY score DESC
        LIMIT 10
    )
    SELECT
        article.*,
        fused.score,
        chunk.passage,
        chunk.start_offset,
        chunk.end_offset,
        ts_headline(
            'english', chunk.passage, %(ranking)s::tsquery,
            'HighlightAll=true, StartSel=<mark>, StopSel=</mark>'
        )
    FROM fused
    JOIN app_article AS article ON article.id = fused.source_id
    JOIN app_articleembedding AS chunk ON chunk.id = fused.id
    ORDER BY fused.score DESC
"""

BY_INDEX = "embedding::vector(256) <=> %(vector)s"
BY_READING = "embedding <=> %(vector)s"


class Way(NamedTuple):
    """Whether the vector index is used, and whether both arms share the filtered rows."""

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
    from pgembed_django.retrieval import query_vectors, retrievers, statistics, targets

    survey = statistics.survey(targets.of(Article, name=None), question)
    vector = query_vectors.vectors.ask(space, question).vector()
    with connection.cursor() as cursor:
        cursor.execute(SESSION)
    distance, is_shared = WAYS[way]
    passing = "SELECT id FROM passing" if is_shared else PASSING
    return Prepared(
        HYBRID.format(
            passing=f"passing AS MATERIALIZED ({PASSING})," if is_shared else "",
            distance=distance,
            filter=f"AND source_id IN ({passing})" if below else "",
        ),
        {
            "space": space.pk,
            "below": below,
            "finding": survey.words.finding,
            "ranking": survey.words.ranking,
            "vector": retrievers.literal(vector),
        },
    )


def run(prepared: Prepared) -> list[int]:
    """Run the statement, and return the keys that it found."""
    with connection.cursor() as cursor:
        cursor.execute(prepared.statement, prepared.parameters)
        return [row[0] for row in cursor.fetchall()]
