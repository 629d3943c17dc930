"""The embedder is down, slow or gone: a visitor gets what full text finds, at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from asgiref.sync import async_to_sync

from pgembed_django import asearch, asimilar_to, search, warm_up
from pgembed_django.core import database
from pgembed_django.exceptions import ProviderMisconfigured
from pgembed_django.models import Space
from pgembed_django.retrieval import SearchManager, fusion, query_vectors
from tests.app.models import Article, Note
from tests.conftest import no_more_threads
from tests.played.provider import PlayedProvider

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_known_queries")]

PLAYED = "tests.played.provider.PlayedProvider"


class Stuck(PlayedProvider):
    """Answers when a test lets it."""

    free = threading.Event()

    def embed_batch(self, texts):
        assert self.free.wait(30)
        return super().embed_batch(texts)


class InProcess(PlayedProvider):
    """Is loaded when a test lets it, unless it cannot be loaded."""

    may_load = threading.Event()
    is_broken: ClassVar[bool] = False
    when_loaded: ClassVar[list[Callable[[], object]]] = []

    def warm_up(self):
        if self.is_broken:
            raise ProviderMisconfigured("There is no such model.")
        assert self.may_load.wait(30)
        for call in self.when_loaded:
            call()

    def embed_batch(self, texts):
        self.warm_up()
        return super().embed_batch(texts)


@pytest.fixture
def trout(make_article, run_jobs) -> Article:
    article = make_article(title="A trout", contents="")
    make_article(title="Granite", contents="")
    run_jobs()
    return article


@pytest.fixture
def stuck(settings, trout) -> Iterator[type[Stuck]]:
    """A provider that hangs, in the space that is searched."""
    backend = f"{Stuck.__module__}.Stuck"
    declared = {"BACKEND": backend, "MODEL": "bag-of-words", "DIMENSIONS": 64}
    settings.PGEMBED_PROVIDERS = {"default": declared}
    settings.PGEMBED_QUERY_SECONDS = 0.05
    Space.objects.update(backend=backend)
    Stuck.free.clear()
    Stuck.reset()
    yield Stuck
    Stuck.free.set()


@pytest.fixture
def in_process(settings, trout) -> Iterator[type[InProcess]]:
    """A model in this process that is not loaded yet, in the space that is searched."""
    backend = f"{InProcess.__module__}.InProcess"
    declared = {"BACKEND": backend, "MODEL": "bag-of-words", "DIMENSIONS": 64}
    settings.PGEMBED_PROVIDERS = {"default": declared}
    Space.objects.update(backend=backend)
    InProcess.may_load.clear()
    InProcess.is_broken = False
    InProcess.when_loaded.clear()
    InProcess.reset()
    yield InProcess
    InProcess.may_load.set()


def arrived(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.005)


@pytest.mark.parametrize("mode", ["hybrid", "semantic"])
def test_a_provider_that_is_down_costs_the_meaning_only(trout, provider, mode):
    provider.is_down = True
    Space.objects.update(backend=PLAYED)

    results = search(Article, "trout", mode=mode)

    assert list(results) == [trout]
    assert (results.ranking, results.degraded) == ("lexical", True)
    assert results.note == fusion.NO_VECTOR
    assert results.space is not None


def test_a_lexical_search_does_not_ask_the_provider(trout, provider):
    provider.is_down = True
    provider.embedded.clear()

    results = search(Article, "trout", mode="lexical")

    assert (results.degraded, results.note) == (False, "")
    assert not provider.embedded


def test_a_slow_provider_is_waited_for_no_longer_than_the_deadline(stuck, trout):
    results = search(Article, "trout")

    assert not stuck.free.is_set()
    assert list(results) == [trout]
    assert (results.ranking, results.degraded) == ("lexical", True)


def test_the_next_searches_do_not_wait_for_it_again(stuck, trout, settings):
    search(Article, "trout")
    settings.PGEMBED_QUERY_SECONDS = 600

    results = search(Article, "another trout")

    assert not stuck.free.is_set()
    assert (results.ranking, results.degraded) == ("lexical", True)


@pytest.mark.parametrize("mode", ["hybrid", "semantic"])
def test_a_process_that_can_start_no_thread_searches_by_words(stuck, trout, mode):
    query_vectors.vectors.begin()

    with no_more_threads():
        results = search(Article, "trout", mode=mode)

    assert list(results) == [trout]
    assert (results.ranking, results.degraded) == ("lexical", True)


@pytest.fixture
def note(run_jobs) -> Note:
    note = Note.objects.create(body="trout")
    run_jobs()
    return note


def test_one_search_that_a_provider_fails_is_one_warning(trout, note, provider, caplog):
    Space.objects.update(backend=PLAYED)
    provider.is_down = True
    others = Article.objects.exclude(title="A trout")  # ranked anew, within the queryset

    search([Note, others], "trout")
    search(Article, "another trout")  # while the provider rests

    [record] = caplog.records
    assert record.event == "pgembed.query_not_embedded"
    assert record.model == "bag-of-words"


def test_one_search_that_waits_in_vain_is_one_warning(stuck, trout, caplog):
    search(Article.objects.exclude(title="A trout"), "trout")
    stuck.is_down = True
    stuck.free.set()
    arrived(lambda: not query_vectors.vectors._coming)

    [record] = caplog.records
    assert record.event == "pgembed.query_not_embedded"
    assert record.error == "bag-of-words did not answer in time."


def test_a_text_that_is_refused_is_a_warning_each_time(trout, provider, caplog):
    Space.objects.update(backend=PLAYED)

    for text in ("poison", "poison and more"):
        search(Article, text)

    assert [record.event for record in caplog.records] == ["pgembed.query_not_embedded"] * 2


def test_a_text_that_two_search_for_at_once_is_embedded_once(stuck, trout, settings):
    settings.PGEMBED_QUERY_SECONDS = 10
    space = Space.objects.get(spec="app.ArticleEmbedding")
    first, second = (query_vectors.vectors.ask(space, "trout") for _ in range(2))

    stuck.free.set()

    assert first.vector() is second.vector()
    assert stuck.embedded == ["trout"]


def test_the_time_that_loading_takes_does_not_count(in_process, trout, settings):
    settings.PGEMBED_QUERY_SECONDS = 1e-9  # is over before anything is loaded
    in_process.when_loaded.append(partial(setattr, settings, "PGEMBED_QUERY_SECONDS", 600))
    in_process.may_load.set()

    results = search(Article, "trout", mode="semantic")

    assert (results.ranking, results.degraded, results.note) == ("semantic", False, "")
    assert in_process.embedded == ["trout"]


def test_a_model_that_loads_for_long_is_noted_and_is_no_outage(
    in_process, trout, monkeypatch, caplog
):
    monkeypatch.setattr(query_vectors, "LOADING_SECONDS", 0.0)

    for _ in range(2):
        results = search(Article, "trout")
        assert list(results) == [trout]
        assert (results.ranking, results.degraded) == ("lexical", True)
        assert results.note == f"{fusion.LOADING} {fusion.NO_VECTOR}"

    in_process.may_load.set()
    monkeypatch.undo()
    assert search(Article, "trout").ranking == "hybrid"
    assert search(Article, "another trout").ranking == "hybrid"
    assert in_process.embedded == ["trout", "another trout"]
    assert not caplog.records


def test_queries_that_wait_for_a_model_leave_threads_to_other_providers(
    in_process, trout, settings
):
    space = Space.objects.get(spec="app.ArticleEmbedding")
    waiting = [query_vectors.vectors.ask(space, f"trout {number}") for number in range(20)]
    declared = settings.PGEMBED_PROVIDERS["default"]
    settings.PGEMBED_PROVIDERS = {"other": {**declared, "BACKEND": PLAYED}}
    settings.PGEMBED_QUERY_SECONDS = 10
    Space.objects.update(provider="other", backend=PLAYED)

    assert not search(Article, "trout").degraded

    assert all(pending.is_loading for pending in waiting)
    in_process.may_load.set()
    assert len({pending.vector().tobytes() for pending in waiting}) == 20


def test_a_model_that_cannot_be_loaded_is_one_warning_and_is_loaded_again(
    in_process, settings, caplog
):
    settings.PGEMBED_QUERY_SECONDS = 1e-9  # is over before anything is loaded
    in_process.when_loaded.append(partial(setattr, settings, "PGEMBED_QUERY_SECONDS", 600))
    in_process.is_broken = True
    for text in ("trout", "another trout"):
        assert search(Article, text).note == fusion.NO_VECTOR

    [record] = caplog.records
    assert (record.event, record.error) == (
        "pgembed.query_not_embedded",
        "There is no such model.",
    )
    in_process.is_broken = False
    in_process.may_load.set()
    query_vectors.vectors._outages.clear()
    assert search(Article, "trout", mode="semantic").ranking == "semantic"


OTHERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'
"""


@pytest.mark.django_db(transaction=True)  # the models are looked up over another connection
def test_models_are_loaded_before_the_first_search(in_process, caplog):
    [[connected]] = database.rows("default", OTHERS)
    loaded = threading.Event()
    in_process.when_loaded.append(loaded.set)
    in_process.may_load.set()

    warm_up()

    assert loaded.wait(10)
    assert not in_process.embedded
    arrived(lambda: database.rows("default", OTHERS) == [(connected,)])
    assert not caplog.records


@pytest.mark.django_db(transaction=True)  # the models are looked up over another connection
def test_a_model_that_cannot_be_loaded_at_the_start_is_logged(in_process, caplog):
    in_process.is_broken = True

    warm_up()

    arrived(lambda: caplog.records)
    [record] = caplog.records
    assert record.error == "There is no such model."


def test_another_provider_of_the_same_model_is_asked_meanwhile(stuck, trout, settings):
    assert search(Article, "trout").degraded
    declared = settings.PGEMBED_PROVIDERS["default"]
    settings.PGEMBED_PROVIDERS = {"other": {**declared, "BACKEND": PLAYED}}
    settings.PGEMBED_QUERY_SECONDS = 5
    Space.objects.update(provider="other", backend=PLAYED)

    for text in ("trout", "another trout"):
        assert not search(Article, text).degraded


def test_an_answer_that_comes_late_serves_the_next_search(stuck, trout):
    assert search(Article, "trout").degraded

    stuck.free.set()
    arrived(lambda: not search(Article, "trout").degraded)

    assert search(Article, "trout").ranking == "hybrid"
    assert search(Article, "granite").ranking == "hybrid"
    assert stuck.embedded == ["trout", "granite"]


def test_zero_seconds_never_ask(trout, provider, settings):
    settings.PGEMBED_QUERY_SECONDS = 0
    provider.embedded.clear()

    results = search(Article, "trout")

    assert (results.ranking, results.degraded) == ("lexical", True)
    assert not provider.embedded


def test_a_model_that_is_gone_from_the_machine_is_no_error(trout):
    Space.objects.update(backend="gone.Provider")

    results = search(Article, "trout")

    assert list(results) == [trout]
    assert (results.ranking, results.degraded) == ("lexical", True)


def test_whatever_error_a_provider_raises_costs_the_meaning_only(trout):
    Space.objects.update(backend="tests.played.provider.RaisingProvider")

    results = search(Article, "trout")

    assert list(results) == [trout]
    assert (results.ranking, results.degraded) == ("lexical", True)


class Asking(PlayedProvider):
    """Embeds queries its own way, as a test has it."""

    def embed_query(self, text, *, timeout_seconds=None):
        return self.answer_to(text)


class AskingOtherwise(PlayedProvider):
    """Has a signature that is not the base's."""

    def embed_query(self, text):
        return super().embed_query(text)


def out_of_memory(text):
    raise MemoryError(text)


@pytest.mark.parametrize(
    "answer_to",
    [
        lambda text: None,
        lambda text: "a vector",
        lambda text: [1.0] * 63,
        lambda text: np.zeros(64),
        lambda text: np.full(64, np.nan),
        lambda text: np.ones((1, 64)),
        out_of_memory,
    ],
)
def test_a_query_that_is_embedded_wrongly_costs_the_meaning_only(trout, monkeypatch, answer_to):
    monkeypatch.setattr(Asking, "answer_to", staticmethod(answer_to), raising=False)
    Space.objects.update(backend=f"{Asking.__module__}.Asking")

    results = search(Article, "trout")

    assert list(results) == [trout]
    assert (results.ranking, results.degraded) == ("lexical", True)


def test_a_query_may_be_embedded_as_a_list_of_any_length(trout, monkeypatch):
    monkeypatch.setattr(Asking, "answer_to", staticmethod(lambda text: [5] * 64), raising=False)
    Space.objects.update(backend=f"{Asking.__module__}.Asking")

    results = search(Article, "trout")

    assert (results.ranking, results.degraded) == ("hybrid", False)


class Unmakeable(PlayedProvider):
    """Wants what is not there."""

    def __init__(self, **common):
        super().__init__(**common)
        raise KeyError("ACME_KEY")


@pytest.mark.parametrize("name", ["AskingOtherwise", "Unmakeable"])
def test_a_class_with_a_mistake_costs_the_meaning_only(trout, name):
    Space.objects.update(backend=f"{Asking.__module__}.{name}")

    results = search(Article, "trout")

    assert list(results) == [trout]
    assert (results.ranking, results.degraded) == ("lexical", True)


def test_with_neither_words_nor_meaning_nothing_is_found(trout, provider):
    provider.is_down = True
    Space.objects.update(backend=PLAYED)

    results = search(Article, "the of and")

    assert len(results) == 0
    assert (results.ranking, results.degraded) == ("none", True)
    assert fusion.NO_VECTOR in results.note
    assert fusion.NO_WORDS in results.note


def test_a_space_that_is_not_full_yet_is_noted(trout):
    Space.objects.update(is_partial=True)

    assert search(Article, "trout").note == fusion.PARTIAL


def test_only_the_latest_queries_are_kept(trout, provider, monkeypatch):
    monkeypatch.setattr(query_vectors, "MOST_KEPT", 2)
    Space.objects.update(backend=PLAYED)
    provider.embedded.clear()

    for text in ("a1", "b2", "a1", "c3", "a1", "b2"):
        search(Article, text)

    assert provider.embedded == ["a1", "b2", "c3", "b2"]


def test_the_async_doors_lead_to_the_same_rooms(trout, make_article, run_jobs):
    other = make_article(title="Another trout", contents="")
    run_jobs()
    manager = SearchManager()
    manager.model = Article

    assert set(async_to_sync(asearch)(Article, "trout", mode="lexical")) == {trout, other}
    assert async_to_sync(asimilar_to)(trout, limit=1)[0] == other

    async def through_the_manager():
        return [
            *await manager.asearch("a trout", limit=1),
            *await manager.filter(pk=other.pk).asimilar_to(trout),
        ]

    assert async_to_sync(through_the_manager)() == [trout, other]
