"""What a person asks for wakes the workers that sleep: nobody waits for their next poll."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection

from pgembed_django import enqueue, spaces
from pgembed_django.admin import actions
from pgembed_django.declaration import specs
from pgembed_django.models import Job
from pgembed_django.queue import jobs
from pgembed_django.queue.listener import KEYS, Listener
from pgembed_django.spaces.reembedding import reembed
from tests import postgres
from tests.app.models import Article, Author
from tests.db.conftest import claim

pytestmark = pytest.mark.django_db(transaction=True)

SPEC = "app.ArticleEmbedding"


@pytest.fixture
def article(make_article: Callable[..., Article]) -> Article:
    article = make_article()
    for spec in specs.all():
        spaces.ensure(spec, using="default")
    return article


@pytest.fixture
def is_woken(connect: Callable[..., psycopg.Connection]) -> Callable[[], bool]:
    """Listen like a worker that sleeps. Tells whether it was nudged since it was asked last."""
    listener = connect(autocommit=True)
    listener.execute("LISTEN pgembed")

    def is_woken() -> bool:
        listener.execute("NOTIFY pgembed, 'asked'")  # they come in the order of the commits
        heard = itertools.takewhile(lambda one: one.payload != "asked", listener.notifies())
        return bool(list(heard))

    return is_woken


def reembed_it(article: Article) -> None:
    Job.objects.all().delete()
    assert reembed(specs.of(Article)[0], [str(article.pk)], using="default").enqueued


def release_it(article: Article) -> None:
    [held] = claim()
    assert jobs.reap_held([held.id], max_crashes=3, using="default")["released"]


def retry_it(article: Article) -> None:
    [held] = claim()
    jobs.fail(held, "no", using="default")
    assert jobs.retry_failed([held.id], using="default")["retried"]


def retry_it_in_the_admin(article: Article) -> None:
    [held] = claim()
    jobs.fail(held, "no", using="default")
    counts, _ = actions.work_through(
        actions.ACTIONS["retry"], [Job.objects.get(pk=held.id)], using="default"
    )
    assert counts["retried"]


def backfill_it(article: Article) -> None:
    Job.objects.all().delete()
    call_command("embed_backfill", SPEC, no_wait=True, verbosity=0)
    assert Job.objects.exists()


def reconcile_it(article: Article) -> None:
    Job.objects.all().delete()
    call_command("embed_reconcile", specs=[SPEC], verbosity=0)
    assert Job.objects.exists()


def resume_it(article: Article) -> None:
    jobs.pause("spec", SPEC, by="me", using="default")
    assert jobs.resume("spec", SPEC, using="default")


@pytest.mark.parametrize(
    "ask",
    [
        reembed_it,
        release_it,
        retry_it,
        retry_it_in_the_admin,
        backfill_it,
        reconcile_it,
        resume_it,
    ],
)
def test_what_a_person_asks_for_wakes_who_sleeps(article: Article, is_woken: Any, ask: Any) -> None:
    ask(article)

    assert is_woken()


def test_a_write_wakes_who_sleeps_and_spares_who_is_awake(article: Article, is_woken: Any) -> None:
    with closing(Listener([SPEC], using="default")) as listener:
        assert listener.open()
        assert is_woken()  # by its own first notification

        Article.objects.update(title="awake")
        assert not is_woken()
        assert listener.watch()
        Article.objects.update(title="asleep")
        assert is_woken()


def test_rows_that_are_enqueued_wake_who_sleeps(article: Article, is_woken: Any) -> None:
    with closing(Listener([SPEC], using="default")) as listener:
        assert listener.open()
        assert is_woken()
        assert listener.watch()

        enqueue(Article.objects.all())

        assert is_woken()


def test_a_write_to_a_related_table_wakes_who_sleeps(article: Article, is_woken: Any) -> None:
    author = Author.objects.create(name="Ann")
    with closing(Listener(["app.StoryEmbedding"], using="default")) as listener:
        assert listener.open()
        assert is_woken()
        assert listener.watch()

        author.name = "Bo"
        author.save()

        assert is_woken()


def test_nothing_new_wakes_nobody(article: Article, is_woken: Any) -> None:
    call_command("embed_reconcile", specs=[SPEC], verbosity=0)
    reembed(specs.of(Article)[0], [], using="default")

    assert not is_woken()


# Anybody's


@pytest.fixture
def cluster() -> Iterator[dict[str, Any]]:
    """What connects to a copy of the server whose queue of notifications is small."""
    if postgres.GIVEN or connection.pg_version < 170000:  # type: ignore[attr-defined]
        pytest.skip("the queue's size is to be set for a server of our own, since PostgreSQL 17")
    parameters = connection.get_connection_params()
    known = {name: parameters[name] for name in ("dbname", "user")}
    with postgres.copied(max_notify_queue_pages="64") as folder:
        yield {**known, "host": str(folder), "autocommit": True}


@pytest.mark.live
def test_a_full_queue_of_notifications_fails_no_write_and_no_worker(cluster):
    with psycopg.connect(**cluster) as idle, psycopg.connect(**cluster) as writer:
        idle.execute("LISTEN anything")
        idle.execute("BEGIN")
        with suppress(psycopg.errors.ProgramLimitExceeded):  # full
            while True:
                writer.execute("SELECT pg_notify('anything', repeat('x', 7000) || random())")
        with psycopg.connect(**cluster) as worker:
            keys = {"specs": [SPEC]}
            [[key]] = worker.execute(KEYS, keys).fetchall()
            worker.execute("SELECT pg_advisory_lock(%s)", [key])  # on watch

            writer.execute(
                "INSERT INTO app_article (title, contents, author, published_time) "
                "VALUES ('red wool', '', '', now())"
            )

            assert writer.execute("SELECT spec FROM pgembed_job").fetchall() == [(SPEC,)]
            worker.execute(jobs.NUDGE, {"channel": jobs.CHANNEL})
