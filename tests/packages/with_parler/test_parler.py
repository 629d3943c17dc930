"""Translations have vectors of their own, and lead to the rows that they translate."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pgembed_django import search, similar_to
from tests.packages.with_parler.models import Article, ArticleTranslation, Product

pytestmark = pytest.mark.django_db

ProductTranslation = Product.translations.field.model


@pytest.fixture
def article(run_jobs):
    article = Article.objects.language("en").create(title="Trout", body="A fish", author="Ann")
    article.create_translation("de", title="Forelle", body="Ein Fisch")
    run_jobs()
    return article


@pytest.fixture
def in_languages(texts):
    """The stored texts of a row's translations by language."""

    def of(row):
        translations = row.translations.model
        of_rows = texts(translations)
        rows = translations.objects.filter(master=row)
        return {one.language_code: of_rows[one.pk] for one in rows}

    return of


def test_each_language_has_vectors_of_its_own(article, run_jobs, in_languages, asked):
    assert in_languages(article) == {
        "en": "Trout\n\nA fish\n\nAnn",
        "de": "Forelle\n\nEin Fisch\n\nAnn",
    }

    article.set_current_language("de")
    article.title = "Bachforelle"
    article.save()
    run_jobs()
    assert in_languages(article)["de"] == "Bachforelle\n\nEin Fisch\n\nAnn"

    Article.objects.filter(pk=article.pk).update(author="Bo")
    run_jobs()
    assert in_languages(article) == {
        "en": "Trout\n\nA fish\n\nBo",
        "de": "Bachforelle\n\nEin Fisch\n\nBo",
    }


def test_one_language_alone_is_embedded_again(asked, article, run_jobs):
    asked.clear()

    article.set_current_language("de")
    article.body = "Ein Raubfisch"
    article.save()
    run_jobs()

    assert [text for _, text in asked] == ["Forelle\n\nEin Raubfisch\n\nAnn"]


def test_a_language_that_goes_and_a_row_that_goes(article, in_languages, texts):
    article.delete_translation("de")
    assert set(in_languages(article)) == {"en"}

    article.delete()
    assert not texts(ArticleTranslation)


def test_search_in_a_language_finds_shared_rows(article, run_jobs):
    other = Article.objects.language("de").create(title="Forelle blau", is_public=False)
    run_jobs()
    in_german = ArticleTranslation.objects.filter(language_code="de").select_related("master")

    with CaptureQueriesContext(connection) as queries:
        results = search(in_german, "Forelle")
        found = [hit.instance.master for hit in results.hits]
    assert set(found) == {article, other}
    # That they are shared rows takes no query of its own.
    assert not [one for one in queries if 'FROM "with_parler_article"' in one["sql"]]
    for hit in results.hits:
        hit.instance.master.set_current_language(hit.instance.language_code)
        assert hit.instance.master.title == hit.instance.title

    public = in_german.filter(master__in=Article.objects.filter(is_public=True))
    assert [one.master for one in search(public, "Forelle")] == [article]
    assert not search(in_german.filter(language_code="fr"), "Forelle")


def test_search_in_all_languages_finds_a_shared_row_for_each(article):
    results = search(ArticleTranslation, "Trout Forelle", mode="lexical")

    assert {(hit.instance.master, hit.instance.language_code) for hit in results.hits} == {
        (article, "en"),
        (article, "de"),
    }
    assert list(dict.fromkeys(one.master for one in results)) == [article]


def test_search_in_translations_of_several_models(article, run_jobs):
    product = Product.objects.language("en").create(title="Trout rod", brand="Acme")
    run_jobs()

    found = search([ArticleTranslation, ProductTranslation], "trout", mode="lexical")

    assert {one.master for one in found} == {article, product}


def test_similar_rows_in_the_same_language(article, run_jobs):
    other = Article.objects.language("de").create(title="Forelle", body="Ein Rezept")
    run_jobs()
    in_german = ArticleTranslation.objects.filter(language_code="de")

    found = similar_to(article.get_translation("de"), among=in_german)

    assert [one.master for one in found] == [other]


def test_a_text_method_of_the_shared_row_reads_its_translations(run_jobs, texts, asked):
    product = Product.objects.language("en").create(title="Rod", brand="Acme")
    run_jobs()
    assert texts(Product) == {product.pk: "Rod (Acme)"}

    product.create_translation("de", title="Angel")
    run_jobs()
    assert texts(Product) == {product.pk: "Angel (Acme)"}

    # The package does not see it, and has the former one in its cache.
    ProductTranslation.objects.filter(language_code="de").update(title="Rute")
    run_jobs()
    assert texts(Product) == {product.pk: "Rute (Acme)"}

    product.delete_translation("de")
    run_jobs()
    assert texts(Product) == {product.pk: "Rod (Acme)"}
    assert list(search(Product.objects.translated("en"), "rod", mode="lexical")) == [product]
    assert not search(Product.objects.translated("de"), "rod", mode="lexical")


def test_a_text_method_takes_one_query_for_all_translations(run_jobs, texts):
    for number in range(20):
        product = Product.objects.language("en").create(title=f"Rod {number}")
        product.create_translation("de", title=f"Angel {number}")

    with CaptureQueriesContext(connection) as queries:
        run_jobs()

    of_method = [one for one in queries if '"master_id" IN' in one["sql"]]
    assert len(texts(Product)) == 20
    assert 0 < len(of_method) < 5
