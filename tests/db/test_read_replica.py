"""A replica answers searches and tells the status; whatever writes is refused there."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.db import InternalError, connections
from django.test.utils import CaptureQueriesContext, override_settings

from pgembed_django import asearch, enqueue, search, similar_to
from pgembed_django.declaration import specs
from pgembed_django.models import Ripple
from pgembed_django.ops import status
from pgembed_django.retrieval.results import Mode
from pgembed_django.testing import assert_fresh, run_jobs
from tests import postgres
from tests.app.models import Article, Page, PageExtra
from tests.conftest import wait_until

pytestmark = pytest.mark.django_db(databases=["default", "replica"], transaction=True)

MODES: tuple[Mode, ...] = ("hybrid", "semantic", "lexical")


class InTurns:
    """Each read goes to another one, like ``random.choice`` in Django's documentation."""

    def __init__(self, *names: str) -> None:
        self._names = itertools.cycle(names)

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return next(self._names)


class Replicas:
    """Reads go to the replica, as Django's documentation has it."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool:
        return True

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return db == "default"


@pytest.fixture(scope="module", autouse=True)
def read_only(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The test database by connections that may not write, like those to a standby."""
    default = connections.settings["default"]
    options = {**default["OPTIONS"], "options": "-c default_transaction_read_only=on"}
    with django_db_blocker.unblock(), override_settings(DATABASE_ROUTERS=[Replicas()]):
        name = connections["default"].settings_dict["NAME"]
        connections.settings["replica"] = {**default, "NAME": name, "OPTIONS": options}
        yield
        connections["replica"].close()
        del connections["replica"], connections.settings["replica"]


@pytest.fixture
def wool(make_article: Callable[..., Article]) -> list[Article]:
    """Two articles, embedded by a worker of the database that is written to."""
    articles = [make_article(title="red wool"), make_article(title="blue wool")]
    run_jobs()
    return articles


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_search_reads_only(wool, mode):
    found = search(Article, "red wool", mode=mode)

    assert next(iter(found)).pk == wool[0].pk
    assert not found.degraded
    assert {hit._state.db for hit in found} == {"replica"}


def test_similar_rows_of_one_that_was_written_just_now_or_read_from_a_replica(wool):
    for instance in (wool[0], Article.objects.get(pk=wool[0].pk)):
        assert [hit.pk for hit in similar_to(instance)] == [wool[1].pk]


@pytest.mark.parametrize("names", [("default", "replica"), ("replica", "default")])
def test_a_search_stays_with_the_database_that_the_router_named_first(wool, names):
    for ask in (lambda: search(Article, "red wool"), lambda: similar_to(Article(pk=wool[0].pk))):
        first, other = (CaptureQueriesContext(connections[name]) for name in names)
        with override_settings(DATABASE_ROUTERS=[InTurns(*names)]), first, other:
            assert len(ask()) > 0

        assert len(first) > 0
        assert len(other) == 0


def test_async_searches_and_those_that_hide_what_is_stale_read_only():
    page = Page.objects.create(slug="p", body="a")
    PageExtra.objects.create(page=page, summary="red wool")
    run_jobs()

    assert len(async_to_sync(asearch)(PageExtra, "red wool")) == 1


def test_rows_are_enqueued_where_they_are_written(wool):
    with CaptureQueriesContext(connections["replica"]) as queries:
        assert enqueue(Article.objects.filter(title="red wool")) == 1

    assert not queries.captured_queries
    assert [one.key for one in Ripple.objects.using("default")] == [str(wool[0].pk)]


def test_the_assertions_and_the_status_read_only(wool):
    assert_fresh(Article.objects.get(pk=wool[0].pk))
    found = status.overview(using="replica", specs=[specs.get("app.ArticleEmbedding")])
    assert found.specs[0].active.coverage.ratio == 1.0

    out = io.StringIO()
    call_command("embed_status", database="replica", stdout=out)
    call_command("embed_spaces", database="replica", stdout=out)
    assert "app.ArticleEmbedding" in out.getvalue()


@pytest.mark.parametrize(
    "command",
    [
        ["embed_worker"],
        ["embed_backfill"],
        ["embed_reconcile"],
        ["embed_retry", "--all"],
        ["embed_dismiss", "--all"],
        ["embed_spaces", "prune"],
    ],
    ids=" ".join,
)
def test_a_command_that_writes_is_refused_with_what_to_do(command):
    with pytest.raises(CommandError, match="'replica' is read-only: is it a replica") as raised:
        call_command(*command, database="replica")

    assert raised.value.returncode == 2


# A real one


@pytest.fixture
def standby() -> Iterator[dict[str, Any]]:
    """A hot standby of the embedded server, streaming. As it stands in DATABASES."""
    if postgres.GIVEN:
        pytest.skip("DATABASE_URL names a server that is not ours to replicate")
    with postgres.copied("-R", hot_standby="on") as folder:
        yield {**connections.settings["replica"], "HOST": str(folder), "OPTIONS": {}}


@pytest.mark.live
def test_a_hot_standby_answers_searches_and_follows(standby, wool, monkeypatch):
    connections["replica"].close()
    monkeypatch.setattr(connections["replica"], "settings_dict", standby)
    with connections["replica"].cursor() as cursor:
        cursor.execute("SELECT pg_is_in_recovery()")
        assert cursor.fetchone() == (True,)
    try:
        for mode in MODES:
            assert next(iter(search(Article, "red wool", mode=mode))).pk == wool[0].pk

        Article.objects.filter(pk=wool[0].pk).update(title="green wool")
        run_jobs()
        wait_until(lambda: next(iter(search(Article, "green"))).title == "green wool", seconds=10)

        with pytest.raises(CommandError, match="read-only"):
            call_command("embed_worker", "--drain", database="replica")
        with pytest.raises(InternalError, match="read-only transaction"):
            connections["replica"].cursor().execute("DELETE FROM app_article")
    finally:
        connections["replica"].close()
