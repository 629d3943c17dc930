"""Specs that are read from the log in a project's tests, and in drains: no worker runs for long."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from pgembed_django import testing
from pgembed_django.capture import slots
from pgembed_django.capture.walsender import Walsender
from pgembed_django.models import Job, ReplicationSlot
from pgembed_django.testing import assert_fresh
from tests.app.models import Article, ArticleEmbedding
from tests.captures import catch_up
from tests.conftest import embedded_text

hows = pytest.mark.parametrize("how", ["wal", "message"])


def drain() -> None:
    call_command("embed_worker", "--drain", verbosity=0)


# In a test's transaction, where nothing is ever committed


@hows
@pytest.mark.django_db
def test_in_a_transaction_created_changed_and_deleted_rows_are_embedded(capture, make_article, how):
    capture(Article, how)
    kept, doomed, leaving = (make_article(title=f"old {number}") for number in range(3))

    testing.run_jobs()
    assert_fresh(kept)
    assert (embedded_text(doomed) or "").startswith("old 1")

    Article.objects.filter(pk=kept.pk).update(title="new")
    doomed.delete()
    Article.objects.filter(pk=leaving.pk).update(published_time=None)
    testing.run_jobs()

    assert (embedded_text(kept) or "").startswith("new")
    assert set(ArticleEmbedding.objects.values_list("source_id", flat=True)) == {kept.pk}
    assert not Job.objects.filter(status__in=["pending", "running"]).exists()


@hows
@pytest.mark.django_db
def test_in_a_transaction_unchanged_rows_are_not_embedded_again(
    capture, make_article, provider, how
):
    capture(Article, how)
    make_article()
    testing.run_jobs()
    provider.embedded.clear()

    testing.run_jobs()

    assert provider.embedded == []


@hows
@pytest.mark.django_db
def test_in_a_transaction_nothing_is_read(capture, how):
    capture(Article, how)

    catch_up()

    assert not slots.look(using="default").is_there


# Drains


@hows
@pytest.mark.django_db(transaction=True)
def test_a_drain_embeds_what_was_written_before_it(capture, make_article, how):
    capture(Article, how)
    before_the_slot = make_article(title="before the slot")
    drain()
    kept, doomed, leaving = (make_article(title=f"old {number}") for number in range(3))
    drain()
    assert (embedded_text(doomed) or "").startswith("old 1")

    Article.objects.filter(pk=kept.pk).update(title="new")
    doomed.delete()
    Article.objects.filter(pk=leaving.pk).update(published_time=None)
    drain()

    assert (embedded_text(kept) or "").startswith("new")
    embedded = set(ArticleEmbedding.objects.values_list("source_id", flat=True))
    assert embedded == {before_the_slot.pk, kept.pk}
    assert not Job.objects.filter(status__in=["pending", "running"]).exists()


@hows
@pytest.mark.django_db(transaction=True)
def test_a_drain_beside_a_worker_that_reads_leaves_the_log_to_it(capture, make_article, how):
    capture(Article, how)
    article = make_article(title="old")
    drain()
    name = slots.look(using="default").name
    Article.objects.update(title="new")
    position = ReplicationSlot.objects.get().position
    with Walsender(using="default", is_stopping=lambda: False) as other:
        other.start(name, publication="pgembed", position=position)
        drain()
        assert (embedded_text(article) or "").startswith("old")

    drain()

    assert (embedded_text(article) or "").startswith("new")


@hows
@pytest.mark.django_db(transaction=True)
def test_a_drain_ends_although_a_transaction_is_open(capture, make_article, second_connection, how):
    capture(Article, how)
    drain()
    second_connection.execute("INSERT INTO app_category (name) VALUES ('open')")
    article = make_article()

    drain()

    assert embedded_text(article)
    second_connection.rollback()
