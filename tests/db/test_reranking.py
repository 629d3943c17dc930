"""A reranker orders the first rows anew, from a real socket, and a search outlives it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pgembed_django import Results, asearch, search, warm_up
from pgembed_django.exceptions import ProviderMisconfigured, SearchError
from pgembed_django.rerankers import Reranker
from pgembed_django.retrieval import fusion, query_vectors, reranking
from tests import played
from tests.app.models import Article, Note, Page, PageExtra, Product
from tests.conftest import no_more_threads, wait_until

pytestmark = pytest.mark.django_db

HTTP = "pgembed_django.rerankers.http.HttpReranker"


def by_number(query: str, passage: str) -> float:
    """Prefer the passage with the largest number at its end."""
    return float(passage.split()[-1])


@pytest.fixture(autouse=True)
def _nothing_is_known() -> Iterator[None]:
    query_vectors.vectors.clear()
    yield
    query_vectors.vectors.clear()


@pytest.fixture
def server() -> Iterator[played.Reranking]:
    with played.serving(played.Reranking()) as server:
        server.score = by_number
        yield server


@pytest.fixture
def declare_reranker(settings) -> Callable[..., None]:
    def declare(backend: str = HTTP, **options: object) -> None:
        config = {"BACKEND": backend, "MODEL": "m", "OPTIONS": options}
        settings.PGEMBED_RERANKERS = {"best": config}

    return declare


@pytest.fixture
def reranker(server, declare_reranker) -> played.Reranking:
    declare_reranker(base_url=server.url)
    return server


@pytest.fixture
def make_trouts(make_article, run_jobs) -> Callable[[int], None]:
    """The fewer words beside it, the higher fusion ranks a trout: the last number comes last."""

    def make(count: int) -> None:
        for number in range(count):
            make_article(title="trout", contents="pebble " * number + str(number))
        run_jobs()

    return make


def numbers(results: Results[Article]) -> list[int]:
    return [int(article.contents.split()[-1]) for article in results]


def is_fused(results: Results[Article]) -> bool:
    """Return whether these are in the order of the fusion, and say so."""
    assert numbers(results) == [0, 1, 2, 3]
    return (results.reranked, results.note) == (False, reranking.NOT_RERANKED)


def test_the_reranker_orders_the_rows(make_trouts, reranker):
    make_trouts(4)
    assert numbers(search(Article, "trout")) == [0, 1, 2, 3]

    results = search(Article, "trout", rerank="best")

    assert numbers(results) == [3, 2, 1, 0]
    assert [hit.score for hit in results.hits] == [3.0, 2.0, 1.0, 0.0]
    assert (results.reranked, results.note, results.ranking) == (True, "", "hybrid")
    assert reranker.seen[0].payload["query"] == "trout"


def test_without_the_keyword_no_reranker_is_asked(make_trouts, reranker):
    make_trouts(4)

    results = search(Article, "trout")

    assert not results.reranked
    assert not reranker.seen


@pytest.mark.parametrize("mode", ["semantic", "lexical"])
def test_the_other_modes_are_reranked_too(make_trouts, reranker, mode):
    make_trouts(4)

    assert numbers(search(Article, "trout", mode=mode, rerank="best")) == [3, 2, 1, 0]


def test_a_tie_keeps_the_order_of_the_fusion(make_trouts, reranker):
    make_trouts(4)
    reranker.score = lambda query, passage: 0.5

    results = search(Article, "trout", rerank="best")

    assert numbers(results) == [0, 1, 2, 3]
    assert results.reranked


def test_it_is_awaited_too(make_trouts, reranker):
    make_trouts(4)

    results = async_to_sync(asearch)(Article, "trout", rerank="best")

    assert numbers(results) == [3, 2, 1, 0]


def test_the_pages_have_one_order(make_trouts, reranker):
    make_trouts(60)
    fused = numbers(search(Article, "trout", limit=60))

    whole = search(Article, "trout", limit=60, rerank="best")

    assert numbers(whole) == sorted(fused[: reranking.MOST], reverse=True) + fused[reranking.MOST :]
    scores = [hit.score for hit in whole.hits]
    assert scores == sorted(scores, reverse=True)
    turned = []
    offset = 0
    while offset is not None:
        page = search(Article, "trout", limit=7, offset=offset, rerank="best")
        turned += numbers(page)
        offset = page.next_offset
    assert turned == numbers(whole)
    first, *others = reranker.asked
    assert len(first) == reranking.MOST
    assert all(sorted(other) == sorted(first) for other in others)


def test_several_models_are_ordered_together(make_article, run_jobs, reranker):
    make_article(title="trout", contents="1")
    Note.objects.create(body="trout 2")
    make_article(title="trout", contents="3")
    run_jobs()

    results = search([Article, Note], "trout", rerank="best")

    assert [hit.passage.split()[-1] for hit in results.hits] == ["3", "2", "1"]
    assert len(reranker.asked) == 1


def test_the_passages_are_read_without_highlights(make_trouts, reranker):
    make_trouts(4)

    with CaptureQueriesContext(
        connection,
    ) as captured:
        search(Article, "trout", rerank="best", limit=2)

    # Of the page alone.
    assert len([one for one in captured if "ts_headline" in one["sql"]]) == 1
    [passages] = reranker.asked
    assert len(passages) == 4


def test_passages_that_are_not_stored_are_cut_from_the_rows(run_jobs, reranker):
    for number in range(3):
        Product.objects.create(title=f"trout {number}")
    run_jobs()

    results = search(Product, "trout", name="ProductTitle", rerank="best")

    assert [product.title for product in results] == ["trout 2", "trout 1", "trout 0"]
    assert sorted(*reranker.asked) == ["trout 0", "trout 1", "trout 2"]


def test_a_row_without_text_comes_last(run_jobs, reranker):
    for number in range(3):
        Product.objects.create(title=f"trout {number}")
    run_jobs()
    Product.objects.filter(title="trout 2").update(title="")  # still found by its former text

    results = search(Product, "trout", name="ProductTitle", rerank="best")

    assert [product.title for product in results] == ["trout 1", "trout 0", ""]
    assert sorted(*reranker.asked) == ["trout 0", "trout 1"]


def test_nothing_to_order_asks_nobody(make_trouts, reranker):
    make_trouts(1)

    results = search(Article, "", rerank="best")

    assert not results.reranked
    assert reranking.NOT_RERANKED not in results.note
    assert not reranker.seen


# What the server may know


def test_rows_outside_the_queryset_are_not_sent(make_trouts, reranker):
    make_trouts(4)

    search(Article.objects.exclude(contents__endswith=" 2"), "trout", rerank="best")

    assert sorted(by_number("", text) for text in reranker.asked[0]) == [0, 1, 3]


def test_rows_that_a_policy_hides_are_not_sent(make_trouts, reranker):
    make_trouts(4)
    statements = """
        SET CONSTRAINTS ALL IMMEDIATE;
        CREATE ROLE pgembed_visitor;
        GRANT SELECT ON ALL TABLES IN SCHEMA public TO pgembed_visitor;
        ALTER TABLE app_article ENABLE ROW LEVEL SECURITY;
        CREATE POLICY visible ON app_article USING (contents NOT LIKE '% 2');
        SET LOCAL ROLE pgembed_visitor;
    """
    with connection.cursor() as cursor:
        cursor.execute(statements)

    results = search(Article, "trout", rerank="best")

    assert numbers(results) == [3, 1, 0]
    assert [sorted(by_number("", text) for text in asked) for asked in reranker.asked] == [
        [0, 1, 3]
    ]


def test_texts_that_a_spec_hides_are_not_sent(reranker, run_jobs):
    for number in range(3):
        page = Page.objects.create(slug=str(number), body="x")
        PageExtra.objects.create(page=page, summary=f"trout {number}")
    run_jobs()
    PageExtra.objects.filter(summary="trout 1").update(summary="granite 9")  # waits for a worker

    results = search(PageExtra, "trout", rerank="best")

    assert [extra.summary for extra in results] == ["trout 2", "trout 0"]
    assert sorted(*reranker.asked) == ["trout 0", "trout 2"]


# Without the reranker


def test_while_it_is_down_the_order_is_that_of_the_fusion(make_trouts, declare_reranker):
    make_trouts(4)
    with played.serving(played.Reranking()) as gone:
        declare_reranker(base_url=gone.url)

    results = search(Article, "trout", rerank="best")

    assert is_fused(results)
    assert not results.degraded  # that is about the query's vector


def test_while_it_is_down_searches_do_not_ask_it_again(make_trouts, reranker, caplog):
    make_trouts(4)
    reranker.faults.append(played.plain(503, "Service Unavailable"))

    assert is_fused(search(Article, "trout", rerank="best"))
    assert is_fused(search(Article, "trout", rerank="best"))

    assert search(Article, "", rerank="best").note == fusion.EMPTY
    assert len(reranker.seen) == 1
    [record] = caplog.records
    assert (record.event, record.reranker) == ("pgembed.not_reranked", "best")
    assert "503" in record.error


def test_one_that_rests_is_asked_again_by_another_name_of_the_server(
    make_trouts, reranker, declare_reranker
):
    make_trouts(4)
    reranker.faults.append(played.plain(503, "Service Unavailable"))
    assert is_fused(search(Article, "trout", rerank="best"))

    declare_reranker(base_url=f"{reranker.url}/v1")

    assert search(Article, "trout", rerank="best").reranked


def test_a_server_that_does_not_answer_is_waited_for_no_longer_than_its_deadline(
    make_trouts, reranker, declare_reranker
):
    make_trouts(4)
    declare_reranker(base_url=reranker.url, timeout_seconds=0.05)
    reranker.faults.append(played.SILENT)

    results = search(Article, "trout", rerank="best")

    assert reranker.open  # it still has the request
    assert is_fused(results)


class Stuck(Reranker):
    """A model in this process, which answers when a test lets it."""

    free = threading.Event()
    has_ended = threading.Event()

    def rerank(self, query, passages, *, timeout_seconds):
        self.free.wait(30)
        self.has_ended.set()
        return [0.0] * len(passages)


def test_a_model_in_this_process_is_waited_for_no_longer_than_its_deadline(
    make_trouts, declare_reranker
):
    make_trouts(4)
    declare_reranker(f"{__name__}.Stuck", timeout_seconds=0.05)
    Stuck.free.clear()
    Stuck.has_ended.clear()

    results = search(Article, "trout", rerank="best")

    assert not Stuck.has_ended.is_set()
    assert is_fused(results)
    Stuck.free.set()


class Loading(Reranker):
    """A model in this process, which has to be loaded."""

    loaded = threading.Event()

    def warm_up(self):
        self.loaded.set()

    def rerank(self, query, passages, *, timeout_seconds):
        return [0.0] * len(passages)


def test_a_model_in_this_process_is_loaded_when_it_starts(declare_reranker):
    declare_reranker(f"{__name__}.Loading")
    Loading.loaded.clear()

    warm_up()

    assert Loading.loaded.wait(30)


@pytest.mark.parametrize("declared", [None, {"best": None}, {"best": {"BACKEND": "no.such"}}])
def test_a_web_process_starts_whatever_is_declared(settings, declared):
    settings.PGEMBED_RERANKERS = declared

    warm_up()


def test_a_model_that_cannot_be_loaded_at_the_start_is_logged(
    declare_reranker, monkeypatch, caplog
):
    def fail(self):
        raise ProviderMisconfigured("There is no such model.")

    monkeypatch.setattr(Loading, "warm_up", fail)
    declare_reranker(f"{__name__}.Loading")

    warm_up()

    wait_until(lambda: caplog.records)
    [record] = caplog.records
    assert (record.event, record.reranker) == ("pgembed.not_reranked", "best")
    assert record.error == "There is no such model."


def test_a_process_that_can_start_no_thread_keeps_the_order(make_trouts, reranker):
    make_trouts(4)
    search(Article, "trout")  # so that the query is known
    reranking.calls.begin()

    with no_more_threads():
        results = search(Article, "trout", rerank="best")

    assert is_fused(results)
    reranking.calls.begin()


@pytest.mark.parametrize(
    "answer",
    [
        played.EMPTY,
        played.HTML,
        played.HANG_UP,
        played.reply({"results": [{"index": 0, "relevance_score": 1.0}]}),
    ],
    ids=["empty", "html", "hang up", "too few"],
)
def test_a_wrong_answer_keeps_the_order(make_trouts, reranker, answer):
    make_trouts(4)
    reranker.faults += [answer, answer]  # a broken connection is tried twice

    assert is_fused(search(Article, "trout", rerank="best"))


def test_after_a_wrong_answer_the_next_search_asks_again(make_trouts, reranker, caplog):
    make_trouts(4)
    reranker.faults.append(played.reply({"results": []}))
    assert is_fused(search(Article, "trout", rerank="best"))

    assert search(Article, "trout", rerank="best").reranked

    assert [record.event for record in caplog.records] == ["pgembed.not_reranked"]


# What a search cannot be asked


@pytest.mark.parametrize("rerank", ["bst", "", 1, ["best"], {}])
def test_a_reranker_that_is_not_declared_is_refused(reranker, rerank):
    with pytest.raises(SearchError, match="PGEMBED_RERANKERS declares: 'best'") as raised:
        search(Article, "trout", rerank=rerank)
    assert f"rerank is {rerank!r}" in str(raised.value)


def test_the_nearest_name_is_told(reranker):
    with pytest.raises(SearchError, match="Did you mean 'best'"):
        search(Article, "trout", rerank="bets")


def test_where_none_is_declared_that_is_told():
    with pytest.raises(SearchError, match="PGEMBED_RERANKERS declares: none"):
        search(Article, "trout", rerank="best")


def test_a_wrong_setting_is_told(declare_reranker):
    declare_reranker(url="http://host")

    with pytest.raises(ImproperlyConfigured, match="no option 'url'"):
        search(Article, "trout", rerank="best")
