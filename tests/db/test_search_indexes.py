"""Searches among 10,000 rows: the index is used where it pays, and never costs a result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pgtrigger
import pytest
from django.contrib.postgres.fields import ArrayField
from django.db import connection, transaction
from django.db.models import BigIntegerField, F, Func, Q, QuerySet, Value
from django.db.models.functions import Abs, Mod
from django.test.utils import CaptureQueriesContext
from pgvector.django import CosineDistance

from pgembed_django import search, similar_to, spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Space
from pgembed_django.retrieval import query_vectors, retrievers, statistics, targets
from pgembed_django.retrieval.statistics import Survey, Words
from pgembed_django.spaces import indexes
from pgembed_django.spaces.indexes import vector_index
from tests.app.models import Article, ArticleEmbedding

pytestmark = pytest.mark.django_db

ROWS = 10_000
QUERY = "river trout"

# The author tells how many rows share him.
FILL = """
    SET LOCAL session_replication_role = replica;
    INSERT INTO app_article (id, title, contents, author, published_time)
    SELECT
        n,
        'Title ' || n,
        '',
        CASE
            WHEN mod(n, 1000) = 0 THEN 'one in a thousand'
            WHEN mod(n, 100) = 1 THEN 'one in a hundred'
            WHEN mod(n, 10) = 2 THEN 'one in ten'
            WHEN mod(n, 2) = 1 THEN 'half'
            ELSE 'none'
        END,
        now()
    FROM generate_series(1, %(rows)s) AS n;
    INSERT INTO app_articleembedding (
        source_id, space_id, position, start_offset, end_offset,
        passage, chunk_digest, text_digest, embedding, fulltext
    )
    SELECT
        n, %(space)s, 0, 0, 10,
        passage, '', '',
        ARRAY(SELECT random() - 0.5 + 0 * n FROM generate_series(1, 64))::vector,
        to_tsvector('english', passage)
    FROM generate_series(1, %(rows)s) AS n,
    LATERAL (
        SELECT 'word' || mod(n, 500) || CASE mod(n, 25) WHEN 7 THEN ' river trout' ELSE '' END
    ) AS made(passage);
    CREATE INDEX {fulltext} ON app_articleembedding USING gin (fulltext) WHERE space_id = %(space)s;
    CREATE INDEX {vector} ON app_articleembedding
        USING hnsw ((embedding::vector(64)) vector_cosine_ops) WHERE space_id = %(space)s;
"""

CLEAR = """
    SET LOCAL session_replication_role = replica;
    DELETE FROM app_articleembedding;
    DELETE FROM app_article;
    DELETE FROM pgembed_space;
    DROP INDEX {fulltext};
    DROP INDEX {vector};
"""


@pytest.fixture(scope="module")
def space(django_db_setup: None, django_db_blocker: Any) -> Iterator[Space]:
    """A space with both of its indexes, built by hand. Committed: one for all tests here."""
    with django_db_blocker.unblock():
        [spec] = specs.of(Article)
        [space] = spaces.ensure(spec, using="default")
        names = {"fulltext": indexes.fulltext_name(space), "vector": indexes.vector_name(space)}
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT setseed(0.5)")
            cursor.execute(FILL.format(**names), {"rows": ROWS, "space": space.pk})
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE app_article, app_articleembedding")
        try:
            yield space
        finally:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(CLEAR.format(**names))
            connection.close()


SHARES = {
    "0.1 %": Q(author="one in a thousand"),
    "1 %": Q(author="one in a hundred"),
    "10 %": Q(author="one in ten"),
    "50 %": Q(author__in=["half", "one in a hundred"]),
    "all but a few": ~Q(author="one in a thousand"),
    "all": Q(),
}


def statements(
    operator: str, rows: QuerySet[Article] | type[Article], **keywords: Any
) -> list[str]:
    """Return the statements with an operator in them that a search runs."""
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert len(search(rows, QUERY, **keywords)) == keywords.get("limit", 10)
    return [query["sql"] for query in captured if operator in query["sql"]]


def plan(statement: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {statement.replace('%', '%%')}")
        return "\n".join(line for (line,) in cursor.fetchall())


def exact(rows: QuerySet[Article], space: Space, limit: int) -> list[int]:
    """Return the nearest rows, by reading every vector."""
    vector = query_vectors.vectors.ask(space, QUERY).vector()
    chunks = ArticleEmbedding.objects.filter(source__in=rows.values("pk"), space=space)
    nearest = chunks.order_by(CosineDistance("embedding", vector))
    return list(nearest.values_list("source_id", flat=True)[:limit])


@pytest.fixture(autouse=True)
def _statistics() -> None:
    """Forget what was known of the table before it was filled."""
    statistics.forget()


# Which way is taken


@pytest.mark.parametrize("share", ["all", "all but a few", "50 %"])
def test_the_index_of_vectors_is_used_where_many_rows_pass(space, share):
    [statement] = statements("<=>", Article.objects.filter(SHARES[share]), mode="semantic")

    assert indexes.vector_name(space) in plan(statement)


@pytest.mark.parametrize("share", ["0.1 %", "1 %", "10 %"])
def test_few_rows_are_all_compared(space, share):
    [statement] = statements("<=>", Article.objects.filter(SHARES[share]), mode="semantic")

    assert indexes.vector_name(space) not in plan(statement)


@pytest.mark.parametrize("share", ["all", "50 %", "10 %"])
def test_the_index_of_words_is_used(space, share):
    rows = Article.objects.filter(SHARES[share])
    [statement, *_] = statements("@@", rows, mode="lexical")

    assert indexes.fulltext_name(space) in plan(statement)


def test_hybrid_uses_both_indexes(space):
    search(Article, QUERY)  # its vector is known now
    [words] = statements("@@", Article)
    [vectors] = statements("<=>", Article)

    assert indexes.fulltext_name(space) in plan(words)
    assert indexes.vector_name(space) in plan(vectors)


# What is found


@pytest.mark.parametrize("share", list(SHARES))
def test_a_filter_of_any_share_yields_all_results(space, share):
    rows = Article.objects.filter(SHARES[share])
    limit = min(50, rows.count())

    found = search(rows, QUERY, mode="semantic", limit=limit)

    keys = [article.pk for article in found]
    assert len(set(keys)) == limit
    assert rows.filter(pk__in=keys).count() == limit
    best = exact(rows, space, limit)
    # The index is approximate, and random vectors are the hardest: nothing is near anything.
    shared = len(set(keys) & set(best)) / limit
    assert shared >= (1.0 if share in ("0.1 %", "1 %", "10 %") else 0.9)
    similarities = [hit.similarity for hit in found.hits]
    assert similarities == sorted(similarities, reverse=True)


@pytest.mark.parametrize("share", list(SHARES))
def test_hybrid_yields_all_results_of_any_share(space, share):
    rows = Article.objects.filter(SHARES[share])

    results = search(rows, QUERY, limit=10)

    assert len(results) == 10
    assert results.ranking == "hybrid"


def test_similar_rows_are_read_from_the_index(space):
    article = Article.objects.get(pk=7)

    with CaptureQueriesContext(connection) as captured:
        results = similar_to(article)

    [statement] = [query["sql"] for query in captured if "<=>" in query["sql"]]
    assert indexes.vector_name(space) in plan(statement)
    assert article not in results
    assert len(results) == 10


def passing(value: Any) -> QuerySet[Article]:
    """Return the rows for which a value is above zero: a third of them, as the planner expects."""
    return Article.objects.alias(value=value).filter(value__gt=0)


def test_an_index_that_ends_too_early_gives_way_to_reading_all(space):
    # Not what the planner expects: of the nearest rows none passes.
    far = exact(Article.objects.all(), space, ROWS)[-30:]
    place = Func(
        Value(far, ArrayField(BigIntegerField())),
        F("pk"),
        function="array_position",
        output_field=BigIntegerField(),
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT NULL::vector; SET LOCAL hnsw.max_scan_tuples = 200")

    with CaptureQueriesContext(connection) as captured:
        found = search(passing(place), QUERY, mode="semantic", limit=30)

    assert len([query for query in captured if "<=>" in query["sql"]]) == 2
    assert {article.pk for article in found} == set(far)


def test_an_index_is_read_on_until_enough_rows_have_passed(space):
    rows = passing(1 - Abs(Mod("pk", 10) - 2))  # one in ten
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_sort = off")  # the planner knows better, and would

    [statement] = statements("<=>", rows, mode="semantic", limit=50)  # and no second one

    assert indexes.vector_name(space) in plan(statement)
    with connection.cursor() as cursor:
        cursor.execute(statement.replace("%", "%%"))
        assert len(cursor.fetchall()) == 100
        cursor.execute(statement.replace("%", "%%").replace("relaxed_order", "off"))
        assert len(cursor.fetchall()) < 50


def test_as_many_chunks_are_taken_as_the_rows_have(space):
    [statement] = statements("<=>", Article, mode="semantic")
    assert "LIMIT 100" in statement  # one each

    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE app_articleembedding"
            " SET source_id = 1 + source_id / 3, position = 1 + source_id % 3",
        )
        cursor.execute("ANALYZE app_articleembedding")
    statistics.forget()

    [statement] = statements("<=>", Article, mode="semantic")
    assert "LIMIT 150" in statement


def test_statistics_that_lag_behind_the_table_let_no_fewer_be_taken(space):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE app_articleembedding ALTER source_id SET (n_distinct = 40000)")
        cursor.execute("ANALYZE app_articleembedding")
    statistics.forget()

    [statement] = statements("<=>", Article, mode="semantic")

    assert "LIMIT 100" in statement


def test_pages_through_the_index_follow_each_other(space):
    whole = [article.pk for article in search(Article, QUERY, limit=200)]
    paged: list[int] = []
    for offset in range(0, 200, 20):
        paged += [article.pk for article in search(Article, QUERY, limit=20, offset=offset)]

    assert paged == whole
    assert len(set(whole)) == 200


def test_what_the_scan_sets_does_not_outlive_it(space):
    with connection.cursor() as cursor:
        cursor.execute("SELECT NULL::vector; SHOW hnsw.iterative_scan")
        search(Article, QUERY)
        cursor.execute("SHOW hnsw.iterative_scan")
        assert cursor.fetchone() == ("off",)
        cursor.execute("SHOW hnsw.ef_search")
        assert cursor.fetchone() == ("40",)


def test_what_the_scan_sets_does_not_outlive_it_without_atomic_either(space):
    connection.in_atomic_block = False  # as after set_autocommit(False)
    try:
        search(Article, QUERY)
    finally:
        connection.in_atomic_block = True

    with connection.cursor() as cursor:
        cursor.execute("SHOW hnsw.iterative_scan")
        assert cursor.fetchone() == ("off",)


def test_the_estimate_runs_nothing(space):
    rows = Article.objects.filter(author="one in a hundred")

    keys = targets.of(rows, name=None).keys_statement()

    with CaptureQueriesContext(connection) as captured:
        assert 50 <= retrievers.estimate("default", keys) <= 200

    assert [query["sql"].split()[:2] for query in captured] == [["EXPLAIN", "(FORMAT"]]


def test_a_remainder_is_estimated_though_it_has_no_parameters(space):
    rows = Article.objects.filter(pk=F("pk") % F("category_id"))

    for around in (nullcontext(), pgtrigger.ignore()):
        with around:
            results = search(rows, QUERY)

        assert (len(results), results.ranking) == (0, "hybrid")


# Widths


@pytest.mark.parametrize(
    ("dimensions", "chosen", "spread"),
    [
        (64, "auto", 1),
        (2000, "auto", 1),
        (2001, "auto", 2),
        (4000, "auto", 2),
        (4001, "auto", 8),
        (64, "halfvec", 2),
        (256, "binary", 8),
        (2001, "vector", 2),  # as chosen is not possible
    ],
)
def test_what_a_width_is_ordered_by_is_what_it_is_indexed_by(space, dimensions, chosen, spread):
    wide = Space.objects.create(
        spec="another", fingerprint=str(dimensions), backend="", model="", dimensions=dimensions
    )
    index = vector_index(dimensions, chosen=chosen)
    numbers = np.random.default_rng(1).normal(size=(60, dimensions)).astype(np.float32)
    ArticleEmbedding.objects.bulk_create(
        ArticleEmbedding(
            source_id=number + 1,
            space=wide,
            position=0,
            start_offset=0,
            end_offset=1,
            chunk_digest=b"",
            text_digest=b"",
            embedding=vector,
        )
        for number, vector in enumerate(numbers)
    )
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE INDEX wide ON app_articleembedding USING hnsw "
            f"(({index.of('embedding')}) {index.kind.operators}) WHERE space_id = {wide.pk}"
        )
        cursor.execute("SET LOCAL enable_sort = off")
    survey = Survey(wide, Words({}, "english"), vector_index=index, chunks=60.0)
    both = retrievers.of(targets.of(Article, name=None), survey, within=False)
    depth = retrievers.Depth(results=10, rows=20)

    with CaptureQueriesContext(connection) as captured:
        [found] = both.find([both.semantic(numbers[7], depth=depth)], depth=depth).values()

    [statement] = [query["sql"] for query in captured if "FROM" in query["sql"]]
    assert "wide" in plan(statement)
    assert found[0].key == 8
    assert found[0].value == pytest.approx(1, abs=1e-6)
    assert index.kind.spread == spread
