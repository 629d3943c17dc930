from __future__ import annotations

import datetime
import decimal
import uuid

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import ImproperlyConfigured
from django.db import models

from pgembed_django import embeddable
from pgembed_django.core import text
from pgembed_django.declaration import specs
from tests.app.models import (
    Archived,
    Article,
    ArticleComment,
    Contact,
    Magazine,
    Note,
    Page,
    PageComment,
    PageExtra,
    PinnedPageComment,
    Product,
    Team,
)
from tests.unit.test_decorator import isolated, make_model  # noqa: F401


def spec_of(model):
    [spec] = specs.of(model)
    return spec


def test_specs_are_listed_in_the_order_of_their_keys():
    keys = [spec.key for spec in specs.all()]

    assert keys == sorted(keys)
    assert "app.ArticleEmbedding" in keys
    assert str(specs.get(keys[0])) == keys[0]


def test_an_unknown_key_is_no_spec():
    assert specs.get("app.NoSuchEmbedding") is None


def test_the_name_is_that_of_the_generated_model():
    assert [spec.name for spec in specs.of(Product)] == ["ProductEmbedding", "ProductTitle"]


@pytest.mark.parametrize(
    ("model", "declared"),
    [
        (Article, Article),
        (Team, Team),
        (Group, Team),
        (PinnedPageComment, PageComment),
        (Magazine, Magazine),
    ],
)
def test_a_models_spec_is_the_nearest_one_that_covers_its_rows(model, declared):
    assert spec_of(model).model is declared


def test_a_name_reaches_what_an_inherited_table_declares():
    place = embeddable(fields=["title"])(make_model("Place", title=models.TextField()))
    diner = make_model("Diner", bases=(place,), extra=models.TextField())
    embeddable(fields=["extra"])(diner)

    assert [spec.name for spec in specs.of(diner)] == ["DinerEmbedding"]
    assert [spec.model for spec in specs.of(diner, name="PlaceEmbedding")] == [place]
    with pytest.raises(ImproperlyConfigured, match="It has: DinerEmbedding, PlaceEmbedding"):
        specs.of(diner, name="Other")


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_value_without_an_order_is_one_text_in_every_process(kind):
    article = Article(title=kind(["b", "a", "c"]))

    assert spec_of(Article).text_of(article) == '["a", "b", "c"]'


def test_a_set_within_a_list_is_one_text_in_every_process():
    assert spec_of(Article).text_of(Article(title=[{"b", "a", "c"}])) == '[["a", "b", "c"]]'


@pytest.mark.parametrize("value", [object(), memoryview(b"abc"), [memoryview(b"abc")]])
def test_what_prints_its_place_in_memory_is_no_text(value):
    with pytest.raises(TypeError, match=r"has no text\. Name a method that makes one: text="):
        spec_of(Article).text_of(Article(title=value))


def test_a_model_without_a_spec_is_told_what_to_do():
    with pytest.raises(ImproperlyConfigured) as caught:
        specs.of(User)

    assert "User is not embeddable. Decorate it with @embeddable(fields=[...])" in str(caught.value)
    assert "Article" in str(caught.value)


def test_the_text_is_the_fields_that_are_not_empty_one_paragraph_each():
    article = Article(title=" A title\r\n", contents="Contents\x00")
    assert spec_of(Article).text_of(article) == "A title\n\nContents"

    assert spec_of(Article).text_of(Article(title="A title")) == "A title"
    assert spec_of(Article).text_of(Article()) == ""


def test_values_that_are_no_text_are_written_as_such():
    contact = Contact(name="Ada", binary_json={"city": "Zürich"}, plain_json=None)

    assert spec_of(Contact).text_of(contact) == 'Ada\n\n{"city": "Zürich"}'


class RichText(models.TextField):
    """As that of Wagtail."""

    def get_searchable_content(self, value):
        return [part.strip("<>") for part in value.split()]


def test_rich_text_is_embedded_without_its_markup():
    thing = embeddable(fields=["body", "rest"])(
        make_model("Thing", body=RichText(), rest=RichText(null=True))
    )

    assert spec_of(thing).text_of(thing(body="<one> <two>")) == "one\n\ntwo"
    assert spec_of(thing).needs_instances  # values alone do not tell their field


def test_a_text_method_is_asked_instead_of_the_fields():
    spec = specs.get("app.ProductEmbedding")

    product = Product(title="Tea", price=decimal.Decimal("2.50"))

    assert spec.text_of(product) == "Tea, now only 2.50"


def test_a_text_method_may_say_nothing(monkeypatch):
    monkeypatch.setattr(Product, "pitch", lambda self: None)

    assert specs.get("app.ProductEmbedding").text_of(Product()) == ""


def test_a_text_method_that_returns_no_text_is_named(monkeypatch):
    monkeypatch.setattr(Product, "pitch", lambda self: 7)

    with pytest.raises(TypeError, match=r"Product.pitch\(\) returned int. Return a string"):
        specs.get("app.ProductEmbedding").text_of(Product())


@pytest.mark.parametrize(
    ("model", "printed", "key"),
    [
        (Article, "7", 7),
        (Note, str(uuid.UUID(int=7)), uuid.UUID(int=7)),
        (Page, "a/b", "a/b"),
        (PageExtra, "a/b", "a/b"),
        (Magazine, "7", 7),
        (Team, "7", 7),
    ],
)
def test_a_key_as_postgres_prints_it_becomes_one_of_python(model, printed, key):
    assert spec_of(model).parse_pk(printed) == key


def test_the_recipe_decides_the_digest_and_the_models_name_does_not():
    one, two = spec_of(ArticleComment), spec_of(PageComment)
    assert one.recipe == two.recipe
    assert one.text_digest("a") == two.text_digest("a") == text.digest(one.recipe, "a")

    others = [spec_of(Article), specs.get("app.ProductEmbedding"), specs.get("app.ProductTitle")]
    assert len({spec.text_digest("a") for spec in [one, *others]}) == 4


@pytest.mark.django_db
def test_rows_are_those_of_the_condition_with_no_more_columns_than_needed(
    django_assert_num_queries,
):
    Archived.objects.create(body="hidden", is_public=None)
    Archived.objects.create(body="shown", is_public=True)

    [row] = spec_of(Archived).rows(using="default")

    with django_assert_num_queries(0):
        assert spec_of(Archived).text_of(row) == "shown"
    assert row.get_deferred_fields() == {"is_public"}


@pytest.mark.django_db
def test_without_a_condition_rows_are_all_rows():
    note = Note.objects.create(body="a")

    assert list(spec_of(Note).rows(using="default")) == [note]


@pytest.mark.django_db
def test_rows_for_a_text_method_have_all_columns():
    Product.objects.create(title="a")

    [row] = specs.get("app.ProductEmbedding").rows(using="default")

    assert row.get_deferred_fields() == set()


def test_dates_and_foreign_keys_are_written_as_they_are():
    assert text.of(datetime.date(2026, 1, 2)) == "2026-01-02"
    assert text.of(uuid.UUID(int=1)) == str(uuid.UUID(int=1))
    assert text.of(["a", "b"]) == '["a", "b"]'
    assert text.of(None) == ""
