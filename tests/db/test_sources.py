"""What is read of source rows, and that a row which cannot be read fails alone."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import re
import sys
from typing import Any

import pytest
from django.db import DataError, connection, models, transaction
from django.db.models import F, Prefetch, Q
from django.db.models.signals import pre_init
from django.test.utils import CaptureQueriesContext, isolate_apps
from django.utils import timezone, translation
from django.utils.formats import date_format
from django.utils.timezone import localtime, now

from pgembed_django import search, sources
from pgembed_django.chunking import Chunk, Chunker
from pgembed_django.core import database
from pgembed_django.declaration import specs
from pgembed_django.models import Job
from pgembed_django.spaces.backfill import Backfill
from tests.app.models import (
    Article,
    ArticleComment,
    ArticleEmbedding,
    Category,
    Contact,
    ContactEmbedding,
    Magazine,
    Note,
    Oddity,
    Page,
    Product,
    Team,
)
from tests.conftest import embedded_text
from tests.db.conftest import reconcile_deeply

pytestmark = pytest.mark.django_db

ROWS: list[tuple[type[models.Model], dict[str, Any]]] = [
    (Article, {"title": "100%", "contents": "of it", "published_time": now()}),
    (Note, {"body": "its key is a UUID"}),
    (Page, {"slug": "key's", "body": "its key is a text"}),
    (Product, {"title": "Pen", "price": 3}),
    (Contact, {"name": "Ada", "binary_json": {"b": [1]}, "plain_json": {"a": None}}),
    (Oddity, {"title": "quoted", "order": 5}),
    (Magazine, {"issn": "1234-5678", "blurb": "its parent has a table of its own"}),
    (Team, {"name": "a proxy"}),
]


def texts(spec: specs.Spec, *rows: models.Model) -> dict[str, str]:
    """Return what the statement reads that is compiled once."""
    return sources.Reading(spec, using="default").ask([str(row.pk) for row in rows])().texts


@pytest.mark.parametrize(("model", "values"), ROWS, ids=[model.__name__ for model, _ in ROWS])
def test_what_is_compiled_once_reads_what_a_queryset_does(model, values):
    row = model._default_manager.create(**values)
    model._default_manager.exclude(pk=row.pk).delete()

    for spec in specs.of(model):
        reading = sources.Reading(spec, using="default")
        found = [reading.ask(asked)() for asked in ([], [str(row.pk)], [str(row.pk)] * 2)]

        by_queryset = {str(one.pk): spec.text_of(one) for one in spec.rows()}
        assert [each.texts for each in found] == [{}, by_queryset, by_queryset]
        assert len(by_queryset) == 1
        assert reading.fitting([str(row.pk)], room=10_000) == [str(row.pk)]
        assert reading.fitting([str(row.pk)], room=0) == []


def test_the_order_of_a_model_joins_and_sorts_nothing():
    articles = [Article.objects.create(title=title, published_time=now()) for title in "abcdef"]
    [spec] = specs.of(Article)

    with CaptureQueriesContext(connection) as queries:
        read = sources.Reading(spec, using="default").ask([str(one.pk) for one in articles])

    assert sorted(read().texts.values()) == ["a", "b", "c", "d", "e", "f"]
    [query] = [query["sql"] for query in queries if "app_article" in query["sql"]]
    assert "ORDER BY" not in query
    assert "app_category" not in query


def test_a_row_out_of_the_condition_is_not_read():
    draft = Article.objects.create(title="A draft")
    [spec] = specs.of(Article)

    assert texts(spec, draft) == {}
    assert texts(dataclasses.replace(spec, when=Q(pk__in=[])), draft) == {}


def test_what_a_base_manager_joins_is_there_for_the_text():
    class Joined(models.Manager["Told"]):
        def get_queryset(self) -> models.QuerySet[Told]:
            return super().get_queryset().select_related("category")

    with isolate_apps("tests.app"):

        class Told(Article):
            objects = Joined()

            class Meta:
                proxy = True
                app_label = "app"
                base_manager_name = "objects"

            def told(self) -> str:
                assert self.category is not None
                return f"{self.title} ({self.category})"

    [spec] = specs.of(Article)
    article = Article.objects.create(
        title="Joins", category=Category.objects.create(name="SQL"), published_time=now()
    )

    with CaptureQueriesContext(connection) as queries:
        told = texts(dataclasses.replace(spec, model=Told, text="told"), article)

    assert len([query for query in queries if "app_category" in query["sql"]]) == 1
    assert told == {str(article.pk): "Joins (SQL)"}
    # Fields alone need no join.
    assert texts(dataclasses.replace(spec, model=Told), article) == {str(article.pk): "Joins"}


@pytest.fixture
def told() -> specs.Spec:
    """A text of an article, its category and its comments."""
    with isolate_apps("tests.app"):

        class Told(Article):
            class Meta:
                proxy = True
                app_label = "app"

            def told(self) -> str:
                comments = [comment.text for comment in self.told_comments]
                return f"{self.title} ({self.category}): {', '.join(comments)}"

    [spec] = specs.of(Article)
    comments = ArticleComment.objects.order_by("text")
    prefetch = ("category", Prefetch("articlecomment_set", comments, to_attr="told_comments"))
    return dataclasses.replace(spec, model=Told, text="told", prefetch=prefetch)


class TestWhatATextMethodReadsOfOtherTables:
    @pytest.fixture
    def articles(self) -> list[Article]:
        categories = [Category.objects.create(name=name) for name in ("SQL", "Python")]
        articles = [
            Article.objects.create(
                title=f"{number}", category=categories[number % 2], published_time=now()
            )
            for number in range(40)
        ]
        for article in articles[:20]:
            for text in ("b", "a"):
                ArticleComment.objects.create(article=article, text=text)
        return articles

    @pytest.mark.parametrize("way", ["compiled", "queryset"])
    def test_takes_one_query_for_each_relation(self, told, articles, way):
        reading = sources.Reading(told, using="default")
        with CaptureQueriesContext(connection) as queries:
            if way == "compiled":
                found = reading.ask([str(article.pk) for article in articles])().texts
            else:
                found = sources.read(told, told.rows(using="default")).texts

        assert len(found) == 40
        assert found[str(articles[0].pk)] == "0 (SQL): a, b"
        assert found[str(articles[39].pk)] == "39 (Python):"
        tables = [
            re.findall(r'FROM "(app_\w+)"', query["sql"])[0]
            for query in queries
            if "app_" in query["sql"]
        ]
        assert sorted(tables) == ["app_article", "app_articlecomment", "app_category"]

    def test_is_there_where_a_search_cuts_passages_from_rows(
        self, told, articles, run_jobs, monkeypatch
    ):
        told = dataclasses.replace(told, store_text=False)
        monkeypatch.setitem(specs._registry, told.key, told)
        run_jobs()
        rows = Article.objects.prefetch_related(
            Prefetch("articlecomment_set", ArticleComment.objects.filter(text="b"))
        )

        with CaptureQueriesContext(connection) as queries:
            found = search(rows, "SQL", mode="lexical", limit=20)

        passages = {hit.instance: hit.passage for hit in found.hits}
        assert len(passages) == 20
        assert passages[articles[0]] == "0 (SQL): a, b"
        assert {len(article.articlecomment_set.all()) for article in found} == {0, 1}
        assert len([query for query in queries if "app_category" in query["sql"]]) == 1

    def test_is_read_anew_for_each_page(self, told, articles):
        reading = sources.Reading(told, using="default")
        reading.ask([str(articles[0].pk)])()
        Category.objects.filter(name="SQL").update(name="Postgres")
        ArticleComment.objects.filter(text="a").delete()

        found = reading.ask([str(articles[0].pk)])()

        assert found.texts == {str(articles[0].pk): "0 (Postgres): b"}

    def test_fails_its_row_alone_if_it_cannot_be_read(self, told, articles):
        class Sour:
            def get_prefetch_querysets(self, instances: list[Any], querysets: Any = None) -> Any:
                if any(article.title == "7" for article in instances):
                    raise ValueError("no such relation")
                return Category.objects.none(), id, id, True, "sour", False

            def is_cached(self, instance: Any) -> bool:
                return False

            def __get__(self, instance: Any, kind: Any = None) -> Any:
                return self

        told.model.sour = Sour()
        told = dataclasses.replace(told, prefetch=("sour", *told.prefetch))

        found = sources.Reading(told, using="default").ask([str(one.pk) for one in articles])()

        assert found.errors == {str(articles[7].pk): "ValueError: no such relation"}
        assert len(found.texts) == 39

    @pytest.mark.django_db(transaction=True)
    def test_is_waited_for_where_a_writer_holds_the_table(self, told, articles, second_connection):
        second_connection.execute("LOCK TABLE app_category")
        read = sources.Reading(told, using="default").ask([str(articles[0].pk)])

        with pytest.raises(database.Busy):
            read()
        second_connection.rollback()


def test_a_model_that_remembers_its_fields_is_read_as_a_whole():
    with isolate_apps("tests.app"):

        class Remembering(Article):
            class Meta:
                proxy = True
                app_label = "app"

            def __init__(self, *values: Any, **named: Any) -> None:
                super().__init__(*values, **named)
                self.was = self.title, self.author, self.contents

    [spec] = specs.of(Article)
    spec = dataclasses.replace(spec, model=Remembering)
    article = Article.objects.create(title="Was", author="Ada", published_time=now())

    with CaptureQueriesContext(connection) as queries:
        assert texts(spec, article) == {str(article.pk): "Was"}
    assert len([query for query in queries if "app_article" in query["sql"]]) == 1
    assert sources.read(spec, spec.rows()).texts == {str(article.pk): "Was"}


def test_a_field_that_is_read_with_another_column_is_read_as_a_whole():
    class WithItsAuthor:
        def __get__(self, row: Any, kind: Any = None) -> Any:
            return self if row is None else f"{row.__dict__['title']} by {row.__dict__['author']}"

        def __set__(self, row: Any, value: Any) -> None:
            row.__dict__["title"] = value

    with isolate_apps("tests.app"):

        class Composed(Article):
            class Meta:
                proxy = True
                app_label = "app"

    Composed.title = WithItsAuthor()  # type: ignore[assignment]
    [spec] = specs.of(Article)
    spec = dataclasses.replace(spec, model=Composed)
    article = Article.objects.create(title="Notes", author="Ada", published_time=now())

    assert texts(spec, article) == {str(article.pk): "Notes by Ada"}


def test_a_model_that_changes_what_it_is_given_is_made():
    with isolate_apps("tests.app"):

        class Shouting(Article):
            class Meta:
                proxy = True
                app_label = "app"

            def __setattr__(self, name: str, value: Any) -> None:
                super().__setattr__(name, value.upper() if name == "title" else value)

        class Whispering(Article):
            class Meta:
                proxy = True
                app_label = "app"

            def __getattribute__(self, name: str) -> Any:
                value = super().__getattribute__(name)
                return value.lower() if name == "title" else value

    [spec] = specs.of(Article)
    article = Article.objects.create(title="Notes", published_time=now())

    for model, title in [(Shouting, "NOTES"), (Whispering, "notes")]:
        of_model = dataclasses.replace(spec, model=model)
        assert texts(of_model, article) == {str(article.pk): title}
        assert sources.read(of_model, of_model.rows()).texts == {str(article.pk): title}


def test_no_instances_are_made_where_the_values_are_enough():
    [spec] = specs.of(Article)
    article = Article.objects.create(title="Plain", published_time=now())
    made = []
    pre_init.connect(receiver := lambda sender, **_: made.append(sender), sender=Article)

    try:
        assert texts(spec, article) == {str(article.pk): "Plain"}
        assert sources.read(spec, spec.rows()).texts == {str(article.pk): "Plain"}
        digests, _ = sources.digests(spec, spec.rows(), seconds=9)
    finally:
        pre_init.disconnect(receiver, sender=Article)

    assert digests == {str(article.pk): spec.text_digest("Plain")}
    assert not made


def test_a_text_is_the_same_whatever_language_and_time_zone_are_active(
    run_jobs, monkeypatch, settings
):
    settings.LANGUAGE_CODE, settings.TIME_ZONE = "en", "UTC"
    moment = datetime.datetime(2026, 1, 31, 23, 30, tzinfo=datetime.UTC)
    monkeypatch.setattr(Product, "pitch", lambda row: date_format(localtime(moment), "j F"))
    # The passage is cut from the row whenever it is shown.
    [spec] = specs.of(Product, name="ProductEmbedding")
    spec = dataclasses.replace(spec, store_text=False)
    monkeypatch.setitem(specs._registry, spec.key, spec)
    product = Product.objects.create(title="a day", price=1)

    with translation.override("de"), timezone.override("Asia/Tokyo"):
        assert product.pitch() == "1 Februar"
        assert texts(spec, product) == {str(product.pk): "31 January"}
        digests, _ = sources.digests(spec, spec.rows(), seconds=9)
        run_jobs()
        [hit] = search(Product, "January", name=spec.name).hits

    assert digests == {str(product.pk): spec.text_digest("31 January")}
    assert hit.passage == "31 January"


class TestAValueThatPythonCannotRead:
    """A number with too many digits: for Django in one column, for psycopg in the other."""

    @pytest.fixture(params=["binary_json", "plain_json"])
    def spoil(self, request: pytest.FixtureRequest) -> Any:
        statement = f"UPDATE app_contact SET {request.param} = %s WHERE id = %s"
        too_long = "1" * (sys.get_int_max_str_digits() + 1)

        def spoil(contact: Contact) -> None:
            with connection.cursor() as cursor:
                cursor.execute(statement, [too_long, contact.pk])

        return spoil

    @pytest.fixture
    def contacts(self) -> list[Contact]:
        return [Contact.objects.create(name=name) for name in ("one", "two", "three")]

    def test_fails_its_own_row_only(self, contacts, spoil, run_jobs, settings):
        settings.PGEMBED_MAX_ATTEMPTS = 1
        one, two, three = contacts
        spoil(two)

        run_jobs()

        stored = ContactEmbedding.objects.values_list("source_id", flat=True)
        assert set(stored) == {one.pk, three.pk}
        failure = Job.objects.get(status=Job.Status.FAILED)
        assert failure.source_pk == str(two.pk)
        assert "integer string conversion" in failure.last_error

    def test_does_not_end_the_reconcilers_scan(self, contacts, spoil, run_jobs):
        run_jobs()
        _, two, three = contacts
        spoil(two)
        Job.objects.all().delete()
        ContactEmbedding.objects.filter(source_id=three.pk).update(text_digest=b"another")
        [spec] = specs.of(Contact)

        reconcile_deeply(spec.key)

        assert Job.objects.get().source_pk == str(three.pk)

    def test_is_counted_by_a_backfill(self, contacts, spoil):
        spoil(contacts[1])
        [spec] = specs.of(Contact)

        [estimate] = Backfill(spec, using="default", where=()).estimates()

        assert (estimate.rows, estimate.errors) == (2, 1)

    def test_is_an_error_and_not_a_row_that_is_gone(self, contacts, spoil):
        spoil(contacts[1])
        [spec] = specs.of(Contact)

        loaded = sources.load(spec, [str(contacts[1].pk)], using="default")

        assert list(loaded.errors) == [str(contacts[1].pk)]

    @pytest.mark.django_db(transaction=True)
    def test_is_waited_for_where_a_writer_holds_the_table(self, contacts, spoil, second_connection):
        """Nothing found would mean that the row is gone, and its vectors with it."""
        spoil(contacts[1])
        [spec] = specs.of(Contact)
        read = sources.Reading(spec, using="default").ask([str(contacts[1].pk)])
        second_connection.execute("LOCK TABLE app_contact")

        with pytest.raises(database.Busy):
            read()
        second_connection.rollback()


def test_a_refused_statement_is_no_row_that_cannot_be_read():
    [spec] = specs.of(Contact)
    Contact.objects.create(name="zero")
    broken = spec.rows().filter(pk=1 / (F("id") - F("id")))

    with pytest.raises(DataError, match="division by zero"), transaction.atomic():
        sources.read(spec, broken)


class Panic(BaseException):
    """What a tokenizer written in Rust raises is no ``Exception``."""

    __module__ = "pyo3_runtime"


def test_a_text_method_that_panics_fails_its_row_alone(make_worker, monkeypatch):
    def pitch(product: Product) -> str:
        if product.title == "bad":
            raise Panic("at a character")
        return product.title

    monkeypatch.setattr(Product, "pitch", pitch)
    pks = {title: str(Product.objects.create(title=title).pk) for title in ("a", "bad", "b")}
    worker = make_worker(max_attempts=1)

    while worker.step():
        pass

    ended = Job.objects.filter(spec="app.ProductEmbedding")
    assert set(ended.values_list("source_pk", "status", "last_error")) == {
        (pks["a"], "succeeded", ""),
        (pks["bad"], "failed", "Panic: at a character"),
        (pks["b"], "succeeded", ""),
    }


def test_a_chunker_that_panics_fails_its_row_alone(make_worker, make_article, monkeypatch):
    split = Chunker.split

    def panicking(chunker: Chunker, text: str) -> Any:
        if "bad" in text:
            raise Panic("at a character")
        return split(chunker, text)

    monkeypatch.setattr(Chunker, "split", panicking)
    good, bad = make_article(), make_article(title="bad")
    worker = make_worker(max_attempts=1)

    while worker.step():
        pass

    assert set(Job.objects.values_list("source_pk", "status", "last_error")) == {
        (str(good.pk), "succeeded", ""),
        (str(bad.pk), "failed", "Panic: at a character"),
    }


def nothing(chunks: list[Chunk]) -> Any:
    return None


def texts_alone(chunks: list[Chunk]) -> Any:
    return [chunk.text for chunk in chunks]


def out_of_the_text(chunks: list[Chunk]) -> Any:
    return [chunk._replace(start=-5, end=-1) for chunk in chunks]


def other_words(chunks: list[Chunk]) -> Any:
    return [chunk._replace(text="other words") for chunk in chunks]


def no_whole_numbers(chunks: list[Chunk]) -> Any:
    return [chunk._replace(start=0.0) for chunk in chunks]  # type: ignore[arg-type]


def without_end(chunks: list[Chunk]) -> Any:
    return itertools.cycle(chunks)


@pytest.mark.parametrize(
    "returned",
    [nothing, texts_alone, out_of_the_text, other_words, no_whole_numbers, without_end, sys.exit],
)
def test_a_chunker_that_returns_no_chunks_of_the_text_fails_its_row_alone(
    make_worker, make_article, monkeypatch, returned
):
    class Own(Chunker):
        def split(self, text: str) -> list[Chunk]:
            chunks = super().split(text)
            return returned(chunks) if "bad" in text else chunks

    [spec] = specs.of(Article)
    monkeypatch.setitem(specs._registry, spec.key, dataclasses.replace(spec, chunker=Own()))
    good, bad = make_article(title="good", contents=""), make_article(title="bad")
    worker = make_worker(max_attempts=1)

    while worker.step():
        pass

    assert set(Job.objects.values_list("source_pk", "status")) == {
        (str(good.pk), "succeeded"),
        (str(bad.pk), "failed"),
    }
    assert embedded_text(good) == "good"


def test_a_chunker_may_return_any_iterable_of_chunks(run_jobs, make_article, monkeypatch):
    class Own(Chunker):
        def split(self, text: str) -> Any:
            # One chunk twice: each has a place of its own all the same.
            return (chunk for chunk in super().split(text) * 2)

    [spec] = specs.of(Article)
    monkeypatch.setitem(specs._registry, spec.key, dataclasses.replace(spec, chunker=Own()))
    article = make_article(title="once", contents="")

    run_jobs()

    chunks = ArticleEmbedding.objects.filter(source=article).order_by("position")
    assert list(chunks.values_list("position", "passage")) == [
        (0, "once"),
        (1, "once"),
    ]
