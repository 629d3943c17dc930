"""No search shows a row that is gone or has left its condition, read from the log or not yet."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection

from pgembed_django import Results, asearch, search, similar_to
from pgembed_django.models import Job
from tests.app.models import Article, ArticleEmbedding, Category
from tests.captures import catch_up

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("no_known_queries"),
]

MODES = ["semantic", "lexical", "hybrid"]
HOW_MANY = 12


@pytest.fixture(params=["wal", "message"])
def articles(request, capture, make_article, run_jobs) -> list[Article]:
    """Some that are embedded. Nobody reads the log any more."""
    capture(Article, request.param)
    catch_up()
    made = [make_article(title=f"red wool {number}") for number in range(HOW_MANY)]
    run_jobs()
    assert ArticleEmbedding.objects.count() == HOW_MANY
    return made


def delete(articles: list[Article]) -> None:
    Article.objects.filter(pk__in=[one.pk for one in articles]).delete()


def leave(articles: list[Article]) -> None:
    Article.objects.filter(pk__in=[one.pk for one in articles]).update(published_time=None)


def rekey(articles: list[Article]) -> None:
    for one in articles:
        Article.objects.filter(pk=one.pk).update(id=10**6 + one.pk)


ways = pytest.mark.parametrize("go", [delete, leave, rekey])


def keys(results: Results[Article]) -> set[int]:
    return {article.pk for article in results}


@ways
@pytest.mark.parametrize("mode", MODES)
def test_a_row_that_is_gone_is_not_found(articles, go, mode):
    gone, left = articles[:5], articles[5:]

    go(gone)

    assert ArticleEmbedding.objects.count() == HOW_MANY
    found = search(Article, "red wool", mode=mode, limit=HOW_MANY)
    assert keys(found) == {one.pk for one in left}
    assert found.next_offset is None


@ways
def test_rows_that_are_gone_are_not_found_by_similarity(articles, go):
    gone, left = articles[:5], articles[6:]

    go(gone)

    found = similar_to(articles[5], limit=HOW_MANY)
    assert keys(found) == {one.pk for one in left}
    assert keys(similar_to(gone[0], limit=HOW_MANY)) == {one.pk for one in articles[5:]}


@ways
@pytest.mark.parametrize("mode", MODES)
def test_rows_that_are_gone_leave_no_holes_in_pages(articles, go, mode):
    go(articles[::2])

    pages: list[Any] = []
    offset: int | None = 0
    while offset is not None:
        page = search(Article, "red wool", mode=mode, limit=2, offset=offset)
        pages.append([article.pk for article in page])
        offset = page.next_offset

    assert [len(page) for page in pages] == [2, 2, 2]
    assert sorted(chain.from_iterable(pages)) == [one.pk for one in articles[1::2]]


@ways
@pytest.mark.parametrize("mode", MODES)
def test_rows_that_are_gone_make_no_further_page(articles, make_article, run_jobs, go, mode):
    last = make_article(title="red trout, and much more that nobody asks for, in the wool")
    run_jobs()

    go([last])

    page = search(Article, "red wool", mode=mode, limit=HOW_MANY)
    assert keys(page) == {one.pk for one in articles}
    assert page.next_offset is None


@ways
@pytest.mark.parametrize("mode", ["semantic", "hybrid"])
def test_rows_that_are_gone_are_not_found_however_similar(articles, go, mode):
    go(articles[:11])

    found = search(Article, "red wool", mode=mode, min_similarity=0.1)

    assert keys(found) == {articles[11].pk}


@ways
def test_rows_that_are_gone_are_not_found_in_a_queryset_either(articles, go):
    wool = Category.objects.create(name="wool")
    Article.objects.update(category=wool)

    go(articles[:5])

    found = search(Article.objects.filter(category__name="wool"), "red wool", limit=HOW_MANY)
    assert keys(found) == {one.pk for one in articles[5:]}


def test_rows_that_are_gone_are_not_found_without_blocking(articles):
    leave(articles[:5])

    found = async_to_sync(asearch)(Article, "red wool", limit=HOW_MANY)

    assert keys(found) == {one.pk for one in articles[5:]}


def test_of_a_truncated_table_nothing_is_found(articles):
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE app_article CASCADE")

    assert [keys(search(Article, "red wool", mode=mode)) for mode in MODES] == [set()] * 3


@ways
def test_once_that_was_read_nothing_changes_and_no_vectors_are_left(
    articles, go, make_worker: Callable[..., Any]
):
    go(articles[:5])
    before = keys(search(Article, "red wool", limit=HOW_MANY))

    catch_up()
    worker = make_worker()
    while worker.step():
        pass

    assert not Job.objects.filter(status="pending").exists()
    gone = {one.pk for one in articles[:5]}
    assert not ArticleEmbedding.objects.filter(source_id__in=gone).exists()
    assert keys(search(Article, "red wool", limit=HOW_MANY)) - {10**6 + pk for pk in gone} == before
