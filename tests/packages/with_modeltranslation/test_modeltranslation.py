"""Each language has vectors of its own, from columns that only exist once it is registered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.core.management import call_command
from django.db import connection
from django.utils import translation

from pgembed_django import search
from pgembed_django.checks import check_declarations
from pgembed_django.declaration import specs
from pgembed_django.testing import assert_fresh
from tests.packages.with_modeltranslation.models import Letter, News, Topic

pytestmark = pytest.mark.django_db


@pytest.fixture
def news(run_jobs):
    topic = Topic.objects.create(name_en="Fishing", name_de="Angeln")
    news = News.objects.create(
        title_en="Trout", title_de="Forelle", body_en="A fish", body_de="Ein Fisch", topic=topic
    )
    run_jobs()
    return news


def test_each_language_has_vectors_of_its_own(news, texts):
    assert texts(News, name="NewsEn") == {news.pk: "Trout\n\nA fish\n\nFishing"}
    assert texts(News, name="NewsDe") == {news.pk: "Forelle: Ein Fisch"}
    assert list(search(News, "Forelle", name="NewsDe", mode="lexical")) == [news]
    assert not search(News, "Forelle", name="NewsEn", mode="lexical")


def by_its_column(news):
    news.title_de = "Saibling"
    news.save()


def by_the_active_language(news):
    with translation.override("de"):
        news.title = "Saibling"
        news.save()


def by_a_queryset_in_the_active_language(news):
    with translation.override("de"):
        News.objects.update(title="Saibling")


def by_sql(news):
    connection.cursor().execute("UPDATE with_modeltranslation_news SET title_de = 'Saibling'")


@pytest.mark.parametrize(
    "write", [by_its_column, by_the_active_language, by_a_queryset_in_the_active_language, by_sql]
)
def test_a_change_of_one_language_embeds_that_language_alone(asked, news, run_jobs, texts, write):
    asked.clear()

    write(news)
    run_jobs()

    assert texts(News, name="NewsDe") == {news.pk: "Saibling: Ein Fisch"}
    assert [text for _, text in asked] == ["Saibling: Ein Fisch"]


def test_without_a_translation_a_text_method_falls_back(news, run_jobs, texts):
    News.objects.update(title_de=None, body_de="")
    run_jobs()
    assert texts(News, name="NewsDe") == {news.pk: "Trout: A fish"}

    News.objects.update(title_en="Char")
    run_jobs()
    assert texts(News, name="NewsDe") == {news.pk: "Char: A fish"}
    assert texts(News, name="NewsEn")[news.pk].startswith("Char")


def test_the_language_of_who_searches_does_not_matter(news):
    with translation.override("de"):
        found = search(News.objects.filter(title="Forelle"), "fish", name="NewsEn")
        assert list(found) == [news]
        assert [one.title for one in found] == ["Forelle"]
        assert_fresh(news)


def test_a_related_column_of_one_language(news, run_jobs, texts):
    letter = Letter.objects.create(body="Dear Ann", topic=news.topic)
    run_jobs()
    assert texts(Letter) == {letter.pk: "Dear Ann\n\nFishing\n\nAngeln"}

    with translation.override("de"):
        Topic.objects.update(name="Fischerei")
    Topic.objects.update(name_en="Angling")
    run_jobs()

    assert texts(Letter) == {letter.pk: "Dear Ann\n\nAngling\n\nFischerei"}
    assert texts(News, name="NewsEn") == {news.pk: "Trout\n\nA fish\n\nAngling"}


def test_columns_that_the_command_fills(run_jobs, texts):
    with connection.cursor() as cursor:  # as rows are that were there before the registration
        cursor.execute(
            "INSERT INTO with_modeltranslation_news (title, body) VALUES ('Perch', 'Old')"
        )
    run_jobs()

    call_command("update_translation_fields", "with_modeltranslation", verbosity=0)
    run_jobs()

    assert list(texts(News, name="NewsEn").values()) == ["Perch\n\nOld"]


def test_a_declaration_of_the_translated_field_is_told(monkeypatch):
    [spec] = specs.of(News, name="NewsEn")
    wrong = replace(spec, fields=("title",), related=("topic__name",))
    monkeypatch.setitem(specs._registry, spec.key, wrong)

    messages = check_declarations()

    assert [one.id for one in messages] == ["pgembed.W015"] * 2
    assert "update() writes title_en, title_de alone" in messages[0].msg
    assert "update() writes name_en, name_de alone" in messages[1].msg
