"""The application behind PgBouncer in transaction mode; its worker has a direct connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection, connections, transaction

from pgembed_django import search, similar_to
from pgembed_django.models import Job
from pgembed_django.queue import sessions
from pgembed_django.retrieval.results import Mode
from pgembed_django.testing import run_jobs, without_triggers
from tests.app.models import Article, ArticleEmbedding, Page, PageExtra
from tests.conftest import wait_until
from tests.live.conftest import is_asleep
from tests.live.test_listening import databases, pooler, wire

__all__ = ["pooler", "wire"]

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

MODES: tuple[Mode, ...] = ("hybrid", "semantic", "lexical")


@pytest.fixture
def pooled(pooler) -> Iterator[str]:
    """An alias as the docs write it."""
    connections["pooled"] = connection.copy("pooled")
    connections["pooled"].settings_dict |= {
        **databases(HOST="127.0.0.1", PORT=pooler)["default"],
        "DISABLE_SERVER_SIDE_CURSORS": True,
    }
    yield "pooled"
    connections["pooled"].close()
    del connections["pooled"]


def write(using: str, title: str) -> Article:
    values = {"title": title, "published_time": "2026-01-01T00:00:00Z"}
    return Article.objects.using(using).create(**values)


def test_writes_through_it_leave_their_jobs_and_deletions_take_vectors_along(pooled):
    article = write(pooled, "red wool")
    run_jobs()
    assert ArticleEmbedding.objects.count() == 1

    article.title = "blue wool"
    article.save()
    assert Job.objects.filter(status="pending").count() == 1
    article.delete()

    assert not ArticleEmbedding.objects.exists()


def test_searches_through_it_find_the_same(pooled):
    first, second = write(pooled, "red wool"), write(pooled, "blue wool")
    page = Page.objects.using(pooled).create(slug="p", body="red wool")
    PageExtra.objects.using(pooled).create(page=page, summary="red wool")
    run_jobs()

    for mode in MODES:
        rows = Article.objects.using(pooled)
        assert next(iter(search(rows, "red wool", mode=mode))).pk == first.pk
    assert [hit.pk for hit in similar_to(first)] == [second.pk]
    assert len(search(PageExtra.objects.using(pooled), "red wool")) == 1  # hides what is stale


def test_a_write_through_it_wakes_the_worker(pooled, start_drowsy_worker):
    start_drowsy_worker()
    wait_until(is_asleep)

    write(pooled, "red wool")

    wait_until(lambda: ArticleEmbedding.objects.filter(embedding__isnull=False))


def test_settings_of_one_search_are_not_left_to_the_next_client(pooled):
    write(pooled, "red wool")
    run_jobs()
    asked = "SELECT current_setting('hnsw.ef_search', true), current_setting('lock_timeout')"
    with connections[pooled].cursor() as cursor:
        cursor.execute(asked)
        before = cursor.fetchall()

    search(Article.objects.using(pooled), "red wool")

    with connections[pooled].cursor() as cursor:
        cursor.execute(asked)
        [(ef_search, lock_timeout)] = cursor.fetchall()
    assert ef_search in (before[0][0], "40")  # what it is once the extension is loaded
    assert lock_timeout == before[0][1]


def test_a_worker_behind_it_does_not_bound_the_locks_of_other_clients(pooled):
    bound = "SELECT current_setting('lock_timeout')"
    for using, expected in ((pooled, "0"), ("default", "3s")):
        connections[using].close()
        sessions.configure_sessions(using)
        try:
            with connections[using].cursor() as cursor:
                cursor.execute(bound)
                assert cursor.fetchone() == (expected,)
        finally:
            sessions.end_sessions(using)


def test_within_one_transaction_triggers_are_off_for_this_client_alone(pooled):
    with transaction.atomic(using=pooled), without_triggers(using=pooled):
        write(pooled, "past the triggers")
    write(pooled, "seen")

    assert Job.objects.count() == 1


def test_a_worker_has_five_connections(start_worker):
    """As docs/how-to/poolers-and-replicas.md says, for whoever adds them up."""
    start_worker()
    with transaction.atomic():
        for number in range(100):  # more than a batch
            write("default", f"wool number {number}")
    wait_until(lambda: ArticleEmbedding.objects.count() == 100)
    wait_until(is_asleep)

    def others() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            return cursor.fetchone()[0]

    wait_until(lambda: others() == 5)
