"""REQUESTS_PER_MINUTE and TOKENS_PER_MINUTE hold for all workers together."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection, connections

from pgembed_django import conf, providers, quotas, spaces, specs
from pgembed_django.models import Job, Quota
from pgembed_django.pipeline import Pipeline
from pgembed_django.pool import PATIENCE_SECONDS
from tests.app.models import Note
from tests.conftest import embedded_text, wait_until
from tests.db.conftest import backend_pid
from tests.played.provider import PlayedProvider

pytestmark = pytest.mark.django_db


@pytest.fixture
def limit(settings: Any, provider: type[PlayedProvider]) -> Callable[..., None]:
    """Let the provider have limits, and batches of one text unless told otherwise."""

    def set_limits(batch_size: int = 1, **limits: int) -> None:
        [config] = settings.PGEMBED_PROVIDERS.values()
        options = {"batch_size": batch_size}
        settings.PGEMBED_PROVIDERS = {"default": {**config, **limits, "OPTIONS": options}}

    return set_limits


def take(limits: quotas.QuotaLimits, *, tokens: int = 0) -> float:
    return quotas.take("default", limits, tokens=tokens, using="default")


def let_pass(seconds: float) -> None:
    """Let so much time have passed since anything was taken, by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE pgembed_quota
            SET
                requests_free_at = requests_free_at - %(passed)s * interval '1 second',
                tokens_free_at = tokens_free_at - %(passed)s * interval '1 second'
            """,
            {"passed": seconds},
        )


def most_in_a_minute(taken: list[tuple[float, int]]) -> int:
    return max(sum(n for at, n in taken if begin <= at < begin + 60) for begin, _ in taken)


@pytest.mark.parametrize("limit", [1, 3, 60, 150])
def test_no_minute_sees_more_requests_than_its_quota(limit: int):
    limits = quotas.QuotaLimits(requests=limit, tokens=None)
    began, passed, taken = time.monotonic(), 0.0, []
    while passed < 150:
        at = passed + time.monotonic() - began
        while take(limits) == 0:
            taken.append((at, 1))
        let_pass(0.5)
        passed += 0.5

    assert 0.9 * limit <= most_in_a_minute(taken) <= limit


@pytest.mark.parametrize(("requests", "tokens"), [(None, 1000), (3, 1000), (1, 500)])
def test_no_minute_sees_more_tokens_than_its_quota(requests: int | None, tokens: int):
    limits = quotas.QuotaLimits(requests=requests, tokens=tokens)
    assert limits.tokens_at_once is not None
    began, passed, taken = time.monotonic(), 0.0, []
    while passed < 150:
        at = passed + time.monotonic() - began
        while take(limits, tokens=limits.tokens_at_once) == 0:
            taken.append((at, limits.tokens_at_once))
        let_pass(0.5)
        passed += 0.5

    assert tokens / 2 <= most_in_a_minute(taken) <= tokens


def test_a_batch_that_must_wait_is_told_how_long():
    limits = quotas.QuotaLimits(requests=6, tokens=None)
    assert take(limits) == 0

    wait = take(limits)

    assert 8 < wait <= 61 / 6
    assert take(limits) <= wait, "asking does not put it off"


def test_tokens_are_limited_as_well():
    limits = quotas.QuotaLimits(requests=None, tokens=6000)
    assert take(limits, tokens=600) == 0

    assert 5 < take(limits, tokens=1) <= 61 / 9


def test_a_quota_that_was_too_small_is_not_felt_for_hours():
    too_small = quotas.QuotaLimits(requests=None, tokens=1)
    assert take(too_small, tokens=400) == 0

    mended = quotas.QuotaLimits(requests=None, tokens=1_000_000)

    assert 500 < take(mended, tokens=400) <= 600


def test_a_quota_is_not_used_up_by_a_clock_that_was_set_back():
    limits = quotas.QuotaLimits(requests=300, tokens=None)
    take(limits)
    let_pass(-4800)

    assert take(limits) == 0
    assert quotas.wait_seconds("default", using="default") < 1


def test_what_was_used_beyond_is_charged_afterwards():
    limits = quotas.QuotaLimits(requests=60, tokens=None)
    take(limits)

    quotas.owe("default", limits, requests=9, tokens=0, using="default")

    assert 8 < take(limits) <= 10 * 61 / 60


def test_the_requests_of_two_workers_together_stay_within_the_limit(transactional_db: None):
    """Two connections take as fast as they can, for a while."""
    limits = quotas.QuotaLimits(requests=6000, tokens=None)
    taken: list[float] = []
    over = threading.Event()

    def work() -> None:
        try:
            while not over.is_set():
                if take(limits) == 0:
                    taken.append(time.monotonic())
        finally:
            connections["default"].close()

    with ThreadPoolExecutor(2) as workers:
        running = [workers.submit(work), workers.submit(work)]
        wait_until(lambda: len(taken) > 200)
        over.set()
        for one in running:
            one.result()

    # A second's worth was saved up; then one every 61/6000 s.
    seconds = taken[-1] - taken[0]
    assert len(taken) <= 1 + (seconds + quotas.SAVED_SECONDS) * 6000 / quotas.MINUTE_SECONDS + 2


def test_nobody_waits_for_a_lock_while_another_waits_for_its_quota(
    transactional_db: None, second_connection: psycopg.Connection
):
    limits = quotas.QuotaLimits(requests=1, tokens=None)
    take(limits)
    assert take(limits) > 0

    second_connection.execute("SET lock_timeout = '1ms'")
    second_connection.execute("SELECT FROM pgembed_quota FOR UPDATE")


def test_jobs_run_at_the_pace_of_the_quota(limit, make_article, run_jobs):
    limit(REQUESTS_PER_MINUTE=300)
    articles = [make_article() for _ in range(8)]
    began = time.monotonic()

    assert run_jobs() == 8

    assert all(map(embedded_text, articles))
    assert len(PlayedProvider.embedded) == 8
    # Five were saved up, and come at once.
    assert time.monotonic() - began >= 2 * 61 / 300


def test_a_batch_holds_no_more_tokens_than_the_quota_gives_at_once(
    limit, make_article, make_worker
):
    limit(batch_size=32, TOKENS_PER_MINUTE=60_000)
    for _ in range(20):
        make_article(title="", contents="word " * 380)
    worker = make_worker()

    worker.step()

    sent = providers.get().sent
    assert sent["requests"] == 1
    assert 1 < len(PlayedProvider.embedded) < 20
    assert sent["tokens"] <= 60_000 / quotas.LARGEST_SHARE


def test_answers_are_kept_where_the_database_is_lost_while_their_quota_is_paid(
    transactional_db, limit, make_article, make_worker, second_connection
):
    limit(batch_size=4, REQUESTS_PER_MINUTE=600)
    articles = [make_article(title=f"No. {number}") for number in range(2)]
    make_article(title="poison")  # costs requests beyond the one that was taken
    worker = make_worker()
    worker.step()
    second_connection.execute("SELECT pg_terminate_backend(%s)", [backend_pid()])

    with pytest.raises(OperationalError):
        worker.step()
    connection.close()
    while worker.step():
        pass

    assert all(map(embedded_text, articles))
    embedded = [text for text in PlayedProvider.embedded if text != "hello"]
    assert len(embedded) == len(set(embedded)), "none twice"


def test_units_that_would_wait_for_long_are_given_back(limit, make_article, make_worker):
    limit(REQUESTS_PER_MINUTE=6)
    for _ in range(3):
        make_article()
    worker = make_worker()

    while worker.step():
        pass

    assert worker.holding.is_empty
    assert worker.completed == 1
    waiting = Job.objects.filter(status="pending")
    assert waiting.count() == 2
    assert set(waiting.values_list("attempts", "outages")) == {(0, 0)}
    due = worker.claiming.next_due_seconds()
    assert due is None or due > PATIENCE_SECONDS


def test_another_worker_claims_nothing_that_it_could_not_send(limit, make_article, make_worker):
    limit(REQUESTS_PER_MINUTE=6)
    first, second = make_article(), make_article()
    assert Job.objects.count() == 2
    worker, other = make_worker(), make_worker()
    while worker.step():
        pass
    Job.objects.update(run_at="2020-01-01T00:00:00Z")

    while other.step():
        pass

    assert other.completed == 0
    assert [embedded_text(article) is None for article in (first, second)].count(True) == 1


def test_a_provider_without_a_quota_is_not_delayed_by_one_with(settings, provider, make_article):
    [config] = settings.PGEMBED_PROVIDERS.values()
    settings.PGEMBED_PROVIDERS = {
        "default": {**config, "REQUESTS_PER_MINUTE": 1, "OPTIONS": {"batch_size": 1}},
        "free": {**config, "OPTIONS": {"batch_size": 1}},
    }
    known = {spec.key: spec for spec in specs.all()}
    known["app.NoteEmbedding"] = dataclasses.replace(known["app.NoteEmbedding"], provider="free")
    for spec in known.values():
        spaces.ensure(spec, using="default")
    quotas.owe("default", quotas.QuotaLimits(1, None), requests=2, tokens=0, using="default")
    article = make_article()
    for number in range(20):
        Note.objects.create(body=f"Note {number}")
    worker = Pipeline(known, using="default", worker_id=1, settings=conf.current(), inline=True)

    while worker.step():
        pass

    assert worker.completed == 20
    assert embedded_text(article) is None


def test_limits_must_be_whole_numbers(limit):
    limit(REQUESTS_PER_MINUTE=0)
    with pytest.raises(ImproperlyConfigured, match="REQUESTS_PER_MINUTE is 0"):
        providers.get()


def test_without_limits_nothing_is_written(provider, make_article, run_jobs):
    make_article()
    run_jobs()

    assert not Quota.objects.exists()
