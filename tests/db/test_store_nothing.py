"""``store_text="nothing"``: rows are found by their vectors alone."""

from __future__ import annotations

import dataclasses

import pytest
from django.db import connection

from pgembed_django import search, spaces
from pgembed_django.declaration import specs
from pgembed_django.retrieval import fusion
from pgembed_django.spaces import indexes
from tests.app.models import Article, ArticleEmbedding

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("provider", "no_known_queries")]


@pytest.fixture(autouse=True)
def spec(monkeypatch: pytest.MonkeyPatch) -> specs.Spec:
    spec = dataclasses.replace(specs.get("app.ArticleEmbedding"), store_text="nothing")
    monkeypatch.setitem(specs._registry, spec.key, spec)
    return spec


@pytest.fixture
def trout(make_article, run_jobs) -> Article:
    article = make_article(title="A trout", contents="")
    make_article(title="Granite", contents="")
    run_jobs()
    return article


def test_neither_passages_nor_words_are_stored(trout):
    assert set(ArticleEmbedding.objects.values_list("passage", "fulltext")) == {(None, None)}
    assert not ArticleEmbedding.objects.filter(embedding=None).exists()
    with connection.cursor() as cursor:
        cursor.execute("SELECT string_agg(chunk::text, ' ') FROM app_articleembedding AS chunk")
        assert "trout" not in cursor.fetchone()[0]


def test_a_search_by_both_goes_by_meaning_and_shows_passages(trout):
    results = search(Article, "trout")

    assert results[0] == trout
    assert results.hits[0].highlight == "A <mark>trout</mark>"
    assert (results.ranking, results.degraded, results.note) == ("semantic", False, "")


def test_a_search_by_words_finds_nothing_and_says_why(trout):
    results = search(Article, "trout", mode="lexical")

    assert (list(results), results.note) == ([], fusion.NO_WORDS_STORED)


def test_so_does_one_whose_query_cannot_be_embedded(trout, provider):
    provider.is_down = True

    results = search(Article, "trout")

    assert (list(results), results.ranking) == ([], "none")
    assert (results.degraded, results.note) == (True, fusion.NEITHER)


def test_no_text_is_stored_while_its_vectors_are_awaited(make_article, provider, run_jobs):
    provider.is_down = True
    make_article()

    run_jobs()

    assert not ArticleEmbedding.objects.exists()


def test_no_index_of_words_is_built(trout, settings, spec):
    settings.PGEMBED_INDEX_ROWS = 1
    space = spaces.active(spec, using="default")

    assert indexes._missing(spec, space, using="default") == [indexes.vector_name(space)]
