"""``enqueue``: rows whose text has changed without their triggers noticing."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction

from pgembed_django import enqueue
from pgembed_django.declaration import specs
from pgembed_django.embedding.handler import RIPPLES_SECONDS
from pgembed_django.models import Job, Ripple
from pgembed_django.spaces.ripples import MOST_RIPPLES, Expander
from pgembed_django.testing import assert_embedding_pending, without_triggers
from tests.app.models import (
    Article,
    ArticleEmbedding,
    Category,
    Note,
    Page,
    PinnedPageComment,
    Product,
)
from tests.db.conftest import claim

pytestmark = pytest.mark.django_db

TOUCH = "UPDATE app_article SET contents = md5(contents) WHERE id = %s"


@pytest.fixture
def make_articles(make_article):
    """Make rows without jobs."""

    def make(count: int, **values: Any) -> list[Article]:
        with without_triggers(Article):
            return [make_article(**values) for _ in range(count)]

    return make


def expand() -> None:
    """Expand the ripples, as workers do."""
    expander = Expander(specs.all(), using="default")
    while (spec := expander.next_spec()) and expander.expand(spec):
        pass


def enqueue_now(rows: Any, **keywords: Any) -> int:
    count = enqueue(rows, **keywords)
    expand()
    return count


def units(spec: str = "app.ArticleEmbedding") -> set[str]:
    pending = Job.objects.filter(spec=spec, status="pending")
    return set(pending.values_list("source_pk", flat=True))


def keys(*rows: Any) -> set[str]:
    return {str(row.pk) for row in rows}


def test_rows_get_jobs_behind_those_of_writes():
    with without_triggers():
        page, _ = (Page.objects.create(slug=slug, body="x") for slug in ("one", "two"))

    assert enqueue_now(Page.objects.filter(pk=page.pk)) == 1

    [job] = Job.objects.all()
    assert (job.spec, job.source_pk) == ("app.PageEmbedding", "one")
    assert (job.kind, job.is_awaited, job.priority) == ("ripple", True, -490)


def test_a_job_that_backs_off_is_due_again():
    Note.objects.create(body="x")
    Job.objects.update(run_at="2100-01-01T00:00:00Z", attempts=3)

    enqueue_now(Note.objects.all())

    assert [held.attempts for held in claim()] == [0]


def test_a_text_that_has_not_changed_is_not_embedded_again(provider, run_jobs):
    Note.objects.create(body="trout")
    run_jobs()

    enqueue_now(Note.objects.all())

    assert run_jobs() == 1
    assert provider.embedded == ["trout"]


def test_a_running_job_is_followed_by_another(monkeypatch, make_worker):
    monkeypatch.setattr(Product, "pitch", lambda row: "old")
    Product.objects.create(title="Pen")
    worker = make_worker()
    worker.step()
    monkeypatch.setattr(Product, "pitch", lambda row: "new")

    enqueue_now(Product.objects.all(), name="ProductEmbedding")

    while worker.step():
        pass
    stored = specs.get("app.ProductEmbedding").embedding_model.objects
    assert [chunk.passage for chunk in stored.all()] == ["new"]


def test_many_rows_are_all_enqueued():
    with without_triggers():
        notes = Note.objects.bulk_create(Note(body="x") for _ in range(MOST_RIPPLES + 1))

    assert enqueue_now(Note.objects.all()) == len(notes)

    assert units("app.NoteEmbedding") == keys(*notes)
    assert not Ripple.objects.exists()


def test_a_queryset_that_finds_a_row_twice_enqueues_it_once(make_articles):
    first, second = make_articles(2)
    with without_triggers():
        for _ in range(2):
            first.articlecomment_set.create(text="trout")

    assert enqueue_now(Article.objects.filter(articlecomment__text="trout")) == 1
    assert units() == keys(first)

    only = Article.objects.filter(pk=second.pk)
    assert enqueue_now(Article.objects.all().union(only, all=True)) == 2
    assert units() == keys(first, second)


class TestARowThatDoesNotMatchTheCondition:
    def test_is_left_out(self, make_articles):
        [shown], _ = make_articles(1), make_articles(1, published_time=None)

        assert enqueue_now(Article.objects.all()) == 1

        assert units() == keys(shown)

    def test_loses_the_vectors_that_it_has(self, make_article, run_jobs):
        make_article()
        run_jobs()
        with without_triggers(Article):
            Article.objects.update(published_time=None)

        assert enqueue_now(Article.objects.all()) == 1

        run_jobs()
        assert not ArticleEmbedding.objects.exists()

    def test_gets_none_from_a_worker_that_read_it_before(self, make_article, make_worker):
        make_article()
        worker = make_worker()
        worker.step()
        with without_triggers(Article):
            Article.objects.update(published_time=None)

        assert enqueue_now(Article.objects.all()) == 1

        while worker.step():
            pass
        assert not ArticleEmbedding.objects.exists()


def test_all_declarations_of_a_model_are_meant_unless_one_is_named():
    with without_triggers():
        product = Product.objects.create(title="Pen")

    assert enqueue_now(Product.objects.all(), name="ProductTitle") == 1
    assert not units("app.ProductEmbedding")
    assert enqueue_now(Product.objects.all()) == 2

    assert units("app.ProductEmbedding") == units("app.ProductTitle") == keys(product)


def test_rows_of_a_child_are_embedded_by_their_parents_declaration():
    with without_triggers():
        page = Page.objects.create(slug="one", body="x")
        comment = PinnedPageComment.objects.create(page=page, text="trout")

    assert enqueue_now(PinnedPageComment.objects.filter(rank=0)) == 1

    assert units("app.PageCommentEmbedding") == keys(comment)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (Article(pk=7), "takes a queryset, not Article. Write for instance enqueue(Article.obj"),
        (Article(), "takes a queryset, not Article."),
        (Article, "takes a queryset, not Article."),
        ([7], "takes a queryset, not list. Write for instance enqueue(Article.objects."),
        (Article.objects.all()[:5], "Cannot enqueue a sliced queryset. Filter it instead."),
        (Article.objects.values("pk"), "Cannot enqueue a queryset of values(). Leave values()"),
        (Article.objects.values_list("pk", flat=True), "Cannot enqueue a queryset of values()."),
    ],
)
def test_what_is_no_queryset_of_rows_is_refused_with_the_remedy(rows, said):
    with pytest.raises(TypeError) as caught:
        enqueue(rows)

    assert said in str(caught.value)


def test_a_model_without_a_declaration_is_refused_with_those_that_have_one():
    with pytest.raises(ImproperlyConfigured, match=r"Category is not embeddable.*Article"):
        enqueue(Category.objects.all())


def test_rows_are_chosen_at_once(make_articles):
    [article] = make_articles(1, title="old")

    assert enqueue(Article.objects.filter(title="old")) == 1

    with without_triggers(Article):
        Article.objects.update(title="new")
    assert not Job.objects.exists()
    assert_embedding_pending(article)
    expand()
    assert units() == keys(article)


def test_a_process_that_is_killed_at_its_commit_loses_nothing(
    make_articles, django_capture_on_commit_callbacks
):
    [article] = make_articles(1)

    with django_capture_on_commit_callbacks(execute=False):
        enqueue(Article.objects.all())

    expand()
    assert units() == keys(article)


def test_nothing_is_enqueued_if_the_transaction_is_rolled_back(make_articles):
    make_articles(1)

    with transaction.atomic():
        enqueue(Article.objects.all())
        transaction.set_rollback(True)

    assert not Ripple.objects.exists()
    assert not Job.objects.exists()


def test_a_worker_finds_them_at_once_if_it_claims_nothing(make_articles, make_worker):
    [article] = make_articles(1)
    worker = make_worker()
    worker.step()  # it has just looked, and its clock stands still

    enqueue(Article.objects.all())
    worker.step()

    assert units() == keys(article)


def test_a_worker_finds_them_beside_a_steady_load_of_writes(make_articles, make_worker, clock):
    [article] = make_articles(1)
    worker = make_worker()
    worker.step()
    enqueue(Article.objects.all())

    for _ in range(3):
        Note.objects.create(body="x")
        worker.step()
        assert Ripple.objects.exists()  # a look in each round would cost each write time
    clock.now += RIPPLES_SECONDS
    Note.objects.create(body="x")
    worker.step()

    assert units() == keys(article)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("impatient")
class TestBesideWriters:
    def test_none_of_these_rows_waits_for_its_end(self, make_articles, second_connection):
        [article] = make_articles(1)

        with transaction.atomic():
            enqueue(Article.objects.all())
            second_connection.execute("SET lock_timeout = '1s'")
            second_connection.execute(TOUCH, [article.pk])
            second_connection.commit()

        expand()
        assert units() == keys(article)

    def test_it_waits_for_none_and_needs_none_to_commit(self, make_articles, second_connection):
        articles = make_articles(2)
        second_connection.execute(TOUCH, [articles[0].pk])

        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '1ms'")
            enqueue(Article.objects.all())

        expand()
        assert units() == keys(articles[1])
        second_connection.rollback()  # and with it its job
        expand()
        assert units() == keys(*articles)
