"""``min_similarity`` leaves out rows that are less near in meaning, however they were found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.db.models import Model

from pgembed_django import providers, search, similar_to
from pgembed_django.exceptions import SearchError
from pgembed_django.models import AbstractEmbedding
from pgembed_django.queue.work import Work
from pgembed_django.retrieval import fusion
from tests.app.models import (
    Article,
    ArticleEmbedding,
    Note,
    NoteEmbedding,
    Page,
    PageComment,
    PageCommentEmbedding,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_known_queries")]

QUERY = "trout"
NEARER = np.linspace(0.75, 0.95, fusion.SHALLOW.rows + 1)


def put(cosine: float, embeddings: Any) -> None:
    """Have vectors be this similar to the query's."""
    query = providers.get("default").embed_query(QUERY)
    along = query / np.linalg.norm(query)
    across = np.roll(along, 1)
    across -= (across @ along) * along
    across /= np.linalg.norm(across)
    vector = cosine * along + (1 - cosine**2) ** 0.5 * across
    assert embeddings.update(embedding=vector)


def placed(row: Model, cosine: float, embeddings: type[AbstractEmbedding]) -> None:
    put(cosine, embeddings.objects.filter(source=row))


@pytest.fixture
def make_articles(make_article, run_jobs) -> Callable[..., list[Article]]:
    """Make an article for each similarity to the query."""

    def make(*cosines: float, **values: Any) -> list[Article]:
        articles = [make_article(**values) for _ in cosines]
        run_jobs()
        for article, cosine in zip(articles, cosines, strict=True):
            placed(article, cosine, ArticleEmbedding)
        return articles

    return make


@pytest.fixture
def nearer(make_articles) -> None:
    """More rows than the semantic retriever takes: others are found by words alone."""
    make_articles(*NEARER, title="granite", contents="")


@pytest.mark.parametrize("mode", ["hybrid", "semantic"])
def test_less_similar_rows_are_left_out(make_articles, mode):
    near, middle, far = make_articles(0.9, 0.5, -0.2, title="trout")

    assert set(search(Article, QUERY, mode=mode)) == {near, middle, far}
    results = search(Article, QUERY, mode=mode, min_similarity=0.4)

    assert list(results) == [near, middle]
    assert [hit.similarity for hit in results.hits] == [
        pytest.approx(0.9, abs=1e-5),
        pytest.approx(0.5, abs=1e-5),
    ]
    assert list(search(Article, QUERY, mode=mode, min_similarity=0.95)) == []
    assert set(search(Article, QUERY, mode=mode, min_similarity=-1)) == {near, middle, far}


def test_a_row_found_by_words_alone_is_compared_too(nearer, make_articles):
    near, far = make_articles(0.6, 0.2, title="trout")
    among = {near, far}

    assert {hit.similarity for hit in search(Article, QUERY).hits if hit.instance in among} == {
        None
    }
    kept = [hit for hit in search(Article, QUERY, min_similarity=0.5).hits if hit.instance in among]

    assert [hit.instance for hit in kept] == [near]
    assert kept[0].similarity == pytest.approx(0.6, abs=1e-5)
    assert [match.mode for match in kept[0].matched_by] == ["lexical"]


def test_a_row_found_by_words_alone_is_as_similar_as_its_nearest_chunk(run_jobs):
    page = Page.objects.create(slug="p", body="")
    others = [PageComment.objects.create(page=page, text="Granite.") for _ in NEARER]
    comment = PageComment.objects.create(page=page, text="A trout swims. Sand is very soft.")
    run_jobs()
    for other, cosine in zip(others, NEARER, strict=True):
        placed(other, cosine, PageCommentEmbedding)
    own = PageCommentEmbedding.objects.filter(source=comment)
    put(0.2, own.filter(position=0))
    put(0.6, own.exclude(position=0))

    found = search(PageComment, QUERY, min_similarity=0.5).hits

    [similarity] = [hit.similarity for hit in found if hit.instance == comment]
    assert similarity == pytest.approx(0.6, abs=1e-5)
    assert comment not in search(PageComment, QUERY, min_similarity=0.7)


def test_a_row_without_a_vector_is_left_out(make_article, make_worker, provider):
    old = make_article(title="A trout", contents="granite")
    worker: Work = make_worker()
    while worker.step():
        pass
    provider.is_down = True
    new = make_article(title="Another trout", contents="in the river")
    while worker.step():
        pass
    provider.is_down = False

    assert set(search(Article, QUERY)) == {old, new}
    assert list(search(Article, QUERY, min_similarity=-1)) == [old]


@pytest.mark.parametrize("mode", ["hybrid", "semantic"])
def test_rows_are_left_out_before_the_page_is_cut(make_articles, mode):
    # By words, those that are far come first.
    far = make_articles(*[0.1] * 20, title="trout", contents="")
    near = make_articles(*np.linspace(0.5, 0.9, 70), title="trout", contents="river")
    found: list[Article] = []
    offsets: list[int | None] = [0]

    while offsets[-1] is not None:
        page = search(Article, QUERY, mode=mode, limit=25, offset=offsets[-1], min_similarity=0.4)
        found += page
        offsets.append(page.next_offset)

    assert offsets == [0, 25, 50, None]
    assert len(found) == 70
    assert set(found) == set(near)
    assert not set(found) & set(far)


def test_only_similar_rows_of_several_models_are_merged(make_articles, run_jobs):
    article, _ = make_articles(0.8, 0.1, title="trout")
    near, far = (Note.objects.create(body="trout") for _ in range(2))
    run_jobs()
    placed(near, 0.7, NoteEmbedding)
    placed(far, 0.2, NoteEmbedding)

    assert len(search([Article, Note], QUERY)) == 4
    first = search([Article, Note], QUERY, limit=1, min_similarity=0.5)
    second = search([Article, Note], QUERY, limit=1, offset=1, min_similarity=0.5)

    assert [*first, *second] == [article, near]
    assert (first.next_offset, second.next_offset) == (1, None)


def test_less_similar_rows_are_no_similar_ones(make_articles):
    start, *_ = rows = make_articles(1.0, 0.9, 0.5, 0.1)

    assert list(similar_to(start)) == rows[1:]
    assert list(similar_to(start, min_similarity=0.4)) == rows[1:3]
    assert similar_to(start, limit=1, min_similarity=0.4).next_offset == 1
    assert similar_to(start, limit=2, min_similarity=0.4).next_offset is None
    assert list(similar_to(start, min_similarity=0.95)) == []


@pytest.mark.parametrize("mode", ["hybrid", "semantic"])
def test_without_a_vector_to_compare_with_it_is_not_applied_and_noted(
    make_article, run_jobs, provider, mode
):
    article = make_article(title="A trout", contents="granite")
    run_jobs()
    provider.is_down = True

    results = search(Article, QUERY, mode=mode, min_similarity=0.99)

    assert list(results) == [article]
    assert results.degraded
    assert fusion.NOT_COMPARED in results.note
    assert [hit.similarity for hit in results.hits] == [None]
    assert fusion.NOT_COMPARED not in search(Article, QUERY, mode=mode).note


def test_by_words_alone_there_is_nothing_to_compare(make_articles):
    make_articles(0.9, title="trout")

    with pytest.raises(SearchError, match=r"min_similarity is 0\.5, but lexical search compares"):
        search(Article, QUERY, mode="lexical", min_similarity=0.5)
    assert len(search(Article, QUERY, mode="lexical", min_similarity=None)) == 1


@pytest.mark.parametrize("least", [1.01, -1.01, float("nan"), float("inf"), True, "0.5", [0.5]])
def test_what_is_no_cosine_is_refused(make_articles, least):
    [article] = make_articles(0.9, title="trout")

    for look in (
        lambda: search(Article, QUERY, min_similarity=least),
        lambda: similar_to(article, min_similarity=least),
    ):
        with pytest.raises(SearchError, match=r"Give a cosine: a number from -1 to 1, or None\."):
            look()
