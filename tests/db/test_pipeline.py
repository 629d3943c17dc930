from __future__ import annotations

from datetime import timedelta

import pgtrigger
import pytest
from django.db.models import F
from django.db.models.functions import Now

from pgembed_django import search, similar_to
from pgembed_django.models import Job
from pgembed_django.testing import assert_fresh
from tests.app.models import (
    Article,
    ArticleComment,
    ArticleCommentEmbedding,
    ArticleEmbedding,
    Product,
    ProductEmbedding,
)
from tests.conftest import embedded_text

pytestmark = pytest.mark.django_db


def test_a_saved_row_is_found_by_its_meaning(make_article, run_jobs):
    fish = make_article(title="Fish", contents="A trout swims in the river.")
    make_article(title="Stones", contents="Granite is hard.")

    run_jobs()

    found = search(Article, "a trout in the river", limit=1)[0]
    assert found == fish
    assert "trout" in found.passage
    assert 0 < found.score <= 1


def test_a_row_is_similar_to_others_but_not_to_itself(make_article, run_jobs):
    trout = make_article(title="Trout", contents="A trout swims in the river.")
    salmon = make_article(title="Salmon", contents="A salmon swims in the river.")
    make_article(title="Stones", contents="Granite is hard.")
    run_jobs()

    assert similar_to(trout)[0] == salmon
    assert trout not in similar_to(trout)


def test_rows_are_embedded_and_found_while_triggers_are_ignored(make_article, run_jobs):
    trout, salmon = make_article(title="Trout"), make_article(title="Trout and salmon")
    # Puts a statement of its own, with parameters in order, before each of ours.
    with pgtrigger.ignore():
        run_jobs()

        assert_fresh(trout)
        assert set(search(Article.objects.filter(author=""), "trout")) == {trout, salmon}
        assert list(similar_to(trout)) == [salmon]


@pytest.mark.django_db(transaction=True)
def test_rows_are_embedded_while_triggers_are_ignored_outside_of_a_transaction(
    make_article, run_jobs
):
    trout = make_article(title="Trout")

    with pgtrigger.ignore():
        run_jobs()

    assert_fresh(trout)


def test_an_unpublished_row_is_neither_embedded_nor_found(make_article, run_jobs):
    draft = make_article(title="Trout", published_time=None)

    run_jobs()

    assert embedded_text(draft) is None
    assert draft not in search(Article, "trout")


def test_a_text_is_not_stored_early_where_the_worker_itself_was_held_up(
    make_worker, clock, monkeypatch
):
    def pitch(product: Product) -> str:
        clock.now += 0.9  # as a busy machine would
        return product.title

    monkeypatch.setattr(Product, "pitch", pitch)
    product = Product.objects.create(title="Pen")
    worker = make_worker()

    worker.step()

    assert not ProductEmbedding.objects.exists()  # its answer has come
    worker.step()
    assert ProductEmbedding.objects.get(source=product).embedding is not None


def test_a_text_whose_vectors_take_long_is_found_by_its_words_before_they_come(
    make_worker, clock, provider, settings
):
    settings.PGEMBED_BATCH_SIZE = 1
    long = "\n\n".join(f"The {number}th owl sleeps." for number in range(5))
    article = Article.objects.create(title="not embedded")
    comment = ArticleComment.objects.create(article=article, text=long)
    worker = make_worker(concurrency=1)
    worker.step()
    assert not ArticleCommentEmbedding.objects.exists()

    clock.now += 1.1
    worker.step(claim=False)

    assert not ArticleCommentEmbedding.objects.filter(embedding__isnull=False).exists()
    assert list(search(ArticleComment, "4th owl", mode="lexical")) == [comment]


def test_what_fails_waits_twice_as_long_each_time_and_not_all_for_as_long(
    make_worker, make_article, provider
):
    articles = [make_article(title=f"trouble {number}") for number in range(4)]
    waits = []
    for attempts in (0, 1, 20):
        Job.objects.update(attempts=attempts, run_at=Now() - timedelta(seconds=1))
        failing = Job.objects.filter(attempts=attempts)
        worker = make_worker(backoff_seconds=800, max_attempts=99)
        while failing.exists():
            worker.step()
        left = Job.objects.annotate(left=F("run_at") - Now()).values_list("left", flat=True)
        waits.append(sorted(one.total_seconds() for one in left))

    assert all(len(of_round) == len(articles) for of_round in waits)
    # A test on a busy machine may look a while later.
    for of_round, seconds in zip(waits, (800, 1600, 3600), strict=True):
        assert 0.75 * seconds - 60 < of_round[0] <= of_round[-1] <= 1.25 * seconds
    assert max(of_round[-1] - of_round[0] for of_round in waits) > 10


def test_a_row_without_text_is_settled_without_a_vector(make_article, run_jobs):
    empty = make_article(title="", contents="  ")

    assert run_jobs() == 1

    [row] = ArticleEmbedding.objects.filter(source=empty)
    assert (row.passage, row.embedding) == ("", None)


def test_a_long_row_is_stored_in_chunks_and_found_by_its_best_one(make_article, run_jobs):
    pages = [f"Page {n} tells of granite and of slate and of chalk. " * 30 for n in range(5)]
    pages[3] += "\n\nA trout swims in the river."
    long = make_article(contents="\n\n".join(pages))

    run_jobs()

    assert ArticleEmbedding.objects.filter(source=long).count() > 3
    found = search(Article, "a trout in the river", limit=1)[0]
    assert found == long
    assert "trout" in found.passage
