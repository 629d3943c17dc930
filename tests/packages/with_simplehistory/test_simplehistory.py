"""Rows are embedded, their history is not, and former versions come back fresh."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.db import connection
from simple_history.utils import (
    bulk_create_with_history,
    bulk_update_with_history,
    update_change_reason,
)

from pgembed_django import search
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Ripple
from tests.packages.with_simplehistory.models import Article, Author, Keyword, Page

pytestmark = pytest.mark.django_db

LABEL = "with_simplehistory"

TRIGGERS = """
    SELECT DISTINCT tgrelid::regclass::text
    FROM pg_trigger
    WHERE tgname LIKE 'pgtrigger_pgembed%%' AND tgrelid::regclass::text LIKE %s
"""


@pytest.fixture
def article(run_jobs) -> Article:
    article = Article.objects.create(title="Trout", author=Author.objects.create(name="Ann"))
    article.keywords.add(Keyword.objects.create(word="fish"))
    run_jobs()
    return article


def passages(model: str = "Article") -> list[str]:
    chunks = apps.get_model(f"{LABEL}.{model}Embedding").objects
    return list(chunks.order_by("source_id").values_list("passage", flat=True))


def test_no_history_is_watched_that_no_text_is_made_of():
    with connection.cursor() as cursor:
        cursor.execute(TRIGGERS, [f"{LABEL}%"])
        tables = {table.removeprefix(f"{LABEL}_") for [table] in cursor}

    watched = {"article", "author", "keyword", "article_keywords", "page", "historicalpage"}
    assert tables == watched


def test_a_historical_model_has_nothing_of_ours():
    history = apps.get_model(LABEL, "HistoricalArticle")

    assert not [one for one in specs.all() if one.model is history]
    related = {field.related_model for field in history._meta.get_fields(include_hidden=True)}
    assert apps.get_model(LABEL, "ArticleEmbedding") not in related
    fields = {field.name for field in Article._meta.fields}
    assert fields < {field.name for field in history._meta.fields}


def test_a_save_makes_one_job(article):
    before = Job.objects.count()

    article.title = "Salmon"
    article.save()

    assert article.history.count() == 3  # created, got a keyword, saved
    assert Job.objects.count() == before + 1
    assert not Ripple.objects.exists()


def test_a_former_version_comes_back(article, run_jobs):
    article.title = "Salmon"
    article.save()
    run_jobs()
    assert passages() == ["Salmon\n\nAnn\n\nfish"]

    article.history.earliest().instance.save()
    run_jobs()

    assert passages() == ["Trout\n\nAnn\n\nfish"]
    assert [hit.pk for hit in search(Article, "trout")] == [article.pk]


def test_a_deleted_row_is_forgotten_and_comes_back_from_its_history(article, run_jobs):
    key = article.pk
    article.delete()
    assert passages() == []
    assert list(search(Article, "trout")) == []

    Article.history.filter(id=key).latest().instance.save()
    run_jobs()

    assert passages() == ["Trout\n\nAnn"]


def test_a_related_row_with_history_is_watched(article, run_jobs):
    author = article.author
    author.name = "Bo"
    author.save()
    run_jobs()
    assert passages() == ["Trout\n\nBo\n\nfish"]

    author.history.earliest().instance.save_without_historical_record()
    run_jobs()
    assert passages() == ["Trout\n\nAnn\n\nfish"]


def test_rows_that_are_written_together_with_their_history(run_jobs):
    author = Author.objects.create(name="Ann")
    rows = [Article(title=f"Trout {number}", author=author) for number in range(3)]

    rows = bulk_create_with_history(rows, Article)
    assert run_jobs() == 3
    rows[0].title = "Salmon"
    bulk_update_with_history(rows, Article, ["title"])

    assert run_jobs() == 1
    assert passages() == [f"{title}\n\nAnn" for title in ("Salmon", "Trout 1", "Trout 2")]


def test_the_history_may_be_part_of_the_text(run_jobs):
    page = Page(title="Trout")
    page._change_reason = "first draft"
    page.save()
    run_jobs()
    assert passages("Page") == ["Trout\n\nfirst draft"]

    update_change_reason(page, "a typo")
    run_jobs()
    assert passages("Page") == ["Trout\n\na typo"]
