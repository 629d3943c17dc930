"""A text that crashes its server ends as a failure, and a real outage charges nobody.

Both look alike: the server hangs up and is gone for a while. It is played on a real socket.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pgembed_django import conf, providers, spaces
from pgembed_django.declaration import specs
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.models import Job
from pgembed_django.queue.work import Work
from tests import played
from tests.app.models import ArticleEmbedding
from tests.conftest import embedded_text

pytestmark = pytest.mark.django_db

POISON = "This text crashes it."


class Crashing(played.Ollama):
    """Goes down at a text that says so, for some requests. ``restarts`` counts how often."""

    def __init__(self) -> None:
        super().__init__()
        self.down_for = 0
        self.restarts = 0
        self.while_down = played.HANG_UP

    def crash(self, requests: int = 5) -> None:
        self.restarts += 1
        self.down_for = requests

    def answer(self, seen: played.Seen) -> played.Reply:
        if not self.down_for and any(
            POISON in text for text in (seen.payload or {}).get("input", ())
        ):
            self.crash()
        if self.down_for:
            self.down_for -= 1
            return self.while_down
        return super().answer(seen)


@pytest.fixture
def server(settings: Any) -> Iterator[Crashing]:
    with played.serving(Crashing()) as server:
        settings.PGEMBED_PROVIDERS = {
            "default": {
                "BACKEND": "pgembed_django.providers.ollama.OllamaProvider",
                "MODEL": server.model,
                "DIMENSIONS": server.width,
                "OPTIONS": {"base_url": server.url, "timeout_seconds": 5},
            }
        }
        yield server
        providers.get().close()


@pytest.fixture
def make_worker(server: Crashing, clock: played.Clock) -> Callable[[], Work]:
    def make() -> Work:
        known = {spec.key: spec for spec in specs.all()}
        for spec in known.values():
            spaces.ensure(spec, using="default")
        return Work(
            EmbeddingHandler(known, using="default"),
            using="default",
            worker_id=1,
            settings=conf.current(),
            inline=True,
            clock=clock,
        )

    return make


def run(worker: Work, clock: played.Clock, *, rounds: int = 60) -> None:
    """Let a worker run on, its pauses and its jobs' delays passing at once."""
    for _ in range(rounds):
        while worker.step():
            pass
        clock.now += 100
        make_due_pending()


def make_due_pending() -> None:
    Job.objects.filter(status="pending").update(run_at="2020-01-01T00:00:00Z")


def test_a_text_that_crashes_its_server_fails_and_its_neighbours_succeed(
    server, clock, make_worker, make_article
):
    articles = [make_article() for _ in range(5)]
    culprit = make_article(contents=POISON)
    articles += [make_article() for _ in range(5)]

    run(make_worker(), clock)

    failed = Job.objects.get(status="failed")
    assert failed.source_pk == str(culprit.pk)
    assert "went down 3 times at this text alone" in failed.last_error
    assert all(map(embedded_text, articles))
    assert embedded_text(culprit) is None
    assert set(Job.objects.exclude(pk=failed.pk).values_list("status", "attempts")) == {
        ("succeeded", 0)
    }
    # With its neighbours, and then alone.
    assert server.restarts == 1 + conf.current().max_crashes


@pytest.mark.parametrize(
    "answer",
    [
        played.plain(502, "<html><title>Bad Gateway</title></html>"),
        played.reply({"error": "llama-server process has terminated: signal: killed"}, 500),
        played.reply({"error": 'do embedding request: Post "http://127.0.0.1:9": EOF'}, 400),
    ],
    ids=["502 of a proxy", "Ollama's runner", "Ollama's runner, at once"],
)
def test_a_crash_is_known_behind_another_that_answers_for_it(
    server, clock, make_worker, make_article, answer
):
    server.while_down = answer
    articles = [make_article() for _ in range(3)]
    culprit = make_article(contents=POISON)

    run(make_worker(), clock)

    assert Job.objects.get(status="failed").source_pk == str(culprit.pk)
    assert all(map(embedded_text, articles))


def test_a_text_that_a_firewall_denies_fails_and_its_neighbours_succeed(
    server, clock, make_worker, make_article
):
    denied = played.plain(403, "<html><title>403 Forbidden</title></html>")
    server.poison = lambda text: denied if "<script>" in text else None
    articles = [make_article() for _ in range(3)]
    culprit = make_article(contents="<script>")
    articles += [make_article() for _ in range(3)]

    run(make_worker(), clock)

    failed = Job.objects.get(status="failed")
    assert failed.source_pk == str(culprit.pk)
    assert "answered 403: an HTML page: 403 Forbidden" in failed.last_error
    assert all(map(embedded_text, articles))
    assert set(Job.objects.exclude(pk=failed.pk).values_list("status", "attempts")) == {
        ("succeeded", 0)
    }


@pytest.mark.parametrize(
    "answer",
    [
        played.plain(503, "<html><title>Application error</title></html>"),
        played.plain(429, "too many tokens"),
        played.reply({"error": "too many tokens"}, 429, Retry_After="7"),
    ],
    ids=["503", "429", "429 that asks to wait"],
)
def test_a_text_that_a_server_is_always_too_busy_for_fails_and_its_neighbours_succeed(
    server, clock, make_worker, make_article, answer
):
    clock.now += time.monotonic()
    providers.get().clock = clock
    server.poison = lambda text: answer if "busy" in text else None
    articles = [make_article() for _ in range(3)]
    culprit = make_article(contents="busy")
    articles += [make_article() for _ in range(3)]

    run(make_worker(), clock)

    failed = Job.objects.get(status="failed")
    assert failed.source_pk == str(culprit.pk)
    assert "went down 3 times at this text alone" in failed.last_error
    assert f"answered {answer.status}: " in failed.last_error
    assert all(map(embedded_text, articles))
    assert set(Job.objects.exclude(pk=failed.pk).values_list("status", "attempts")) == {
        ("succeeded", 0)
    }


def test_a_server_that_lets_only_a_plain_word_through_for_a_while_charges_nobody(
    server, clock, make_worker, make_article
):
    articles = [make_article() for _ in range(5)]
    worker = make_worker()
    limited = played.plain(429, "too many requests")
    server.poison = lambda text: None if text == "hello" else limited
    run(worker, clock, rounds=6)

    server.poison = lambda text: None
    run(worker, clock)

    assert all(map(embedded_text, articles))
    assert set(Job.objects.values_list("status", "attempts")) == {("succeeded", 0)}


def test_workers_started_anew_go_on_counting(server, make_article, run_jobs):
    article, culprit = make_article(), make_article(contents=POISON)

    for _ in range(10):
        server.down_for = 0
        run_jobs()
        make_due_pending()

    assert Job.objects.get(status="failed").source_pk == str(culprit.pk)
    assert embedded_text(article)


def test_a_text_that_only_breaks_its_own_connection_is_charged_attempts(
    server, clock, make_worker, make_article
):
    server.poison = lambda text: played.HANG_UP if "drops" in text else None
    article, culprit = make_article(), make_article(contents="This one drops the line.")

    run(make_worker(), clock)

    failed = Job.objects.get(status="failed")
    assert failed.source_pk == str(culprit.pk)
    assert failed.attempts == conf.current().max_attempts
    assert embedded_text(article)


def test_a_real_outage_charges_nobody(server, clock, make_worker, make_article):
    articles = [make_article() for _ in range(40)]
    worker = make_worker()
    server.crash(requests=100)

    run(worker, clock, rounds=80)

    assert server.down_for == 0
    assert all(map(embedded_text, articles))
    assert set(Job.objects.values_list("status", "attempts", "crashes")) == {("succeeded", 0, 0)}


def test_a_server_that_restarts_now_and_then_charges_nobody(
    server, clock, make_worker, make_article
):
    articles = [make_article() for _ in range(100)]
    worker = make_worker()
    for _ in range(8):
        server.crash()
        worker.step()
        run(worker, clock, rounds=6)

    run(worker, clock)

    assert all(map(embedded_text, articles))
    assert set(Job.objects.values_list("status", "attempts")) == {("succeeded", 0)}


def test_no_text_is_sent_while_it_is_not_known_whether_the_server_is_back(
    server, clock, make_worker, make_article
):
    make_article()
    server.crash(requests=1000)
    worker = make_worker()
    while worker.step():
        pass
    server.seen.clear()

    for _ in range(5):
        clock.now += 100
        make_due_pending()
        while worker.step():
            pass

    assert {text for texts in server.asked for text in texts} == {"hello"}


def test_writes_do_not_make_a_worker_claim_a_row_again_while_its_provider_is_paused(
    server, clock, make_worker, make_article
):
    article = make_article()
    server.crash(requests=1000)
    worker = make_worker()

    for number in range(5):
        article.contents = f"Written for the {number}th time"
        article.save()
        while worker.step():
            pass

    assert list(Job.objects.values_list("status", "claims")) == [("pending", 1)]


def test_only_what_the_provider_had_when_it_went_down_is_in_doubt(
    settings, server, clock, make_worker, make_article
):
    settings.PGEMBED_CONCURRENCY = 1
    worker = make_worker()
    make_article()
    run(worker, clock, rounds=1)
    batch_size = conf.current().batch_size
    for _ in range(batch_size + 8):
        make_article()
    server.crash(requests=1000)

    while worker.step():
        pass

    assert Job.objects.filter(status="pending", outages=1).count() == batch_size
    assert Job.objects.filter(status="pending", outages=0).count() == 8


def test_what_was_cut_is_seen_in_the_row_and_in_the_log(server, make_article, run_jobs, caplog):
    server.context = 40
    make_article(title="Fits", contents="")
    long = make_article(title="Does not", contents="word " * 30)

    with caplog.at_level("WARNING", logger="pgembed_django"):
        run_jobs()

    cut = ArticleEmbedding.objects.filter(was_cut=True)
    assert {row.source_id for row in cut} == {long.pk}
    assert f"for example app.ArticleEmbedding {long.pk}" in caplog.text
    assert "word" not in caplog.text
