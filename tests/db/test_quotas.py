"""REQUESTS_PER_MINUTE and TOKENS_PER_MINUTE hold for all workers together."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection, connections

from pgembed_django import conf, providers, spaces
from pgembed_django.declaration import specs
from pgembed_django.embedding import rate_limits
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.embedding.pool import PATIENCE_SECONDS
from pgembed_django.models import Job, Quota
from pgembed_django.queue.work import Work
from tests.app.models import Note
from tests.conftest import embedded_text
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


def take(limits: rate_limits.QuotaLimits, *, tokens: int = 0) -> float:
    return rate_limits.take("default", limits, tokens=tokens, using="default")


class DatabaseClock:
    """The clock of a connection's statements, which stands still until a test moves it."""

    def __init__(self) -> None:
        self.connect()

    def connect(self) -> None:
        """Put it in front of the server's for one more connection: this thread's."""
        with connection.cursor() as cursor:
            cursor.execute("SET search_path = played, pg_catalog, public")

    def advance(self, seconds: float) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE played.clock SET now = now + %s * interval '1 second'", [seconds]
            )


@pytest.fixture
def database_clock() -> Iterator[DatabaseClock]:
    with connection.cursor() as cursor:
        cursor.execute("""
            CREATE SCHEMA played;
            CREATE TABLE played.clock AS SELECT now();
            CREATE FUNCTION played.statement_timestamp() RETURNS timestamptz
            LANGUAGE sql STABLE AS 'SELECT now FROM played.clock'
        """)
    yield DatabaseClock()
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA played CASCADE; RESET search_path")


def most_in_a_minute(taken: list[tuple[float, int]]) -> int:
    return max(sum(n for at, n in taken if begin <= at < begin + 60) for begin, _ in taken)


def taken(
    clock: DatabaseClock, limits: rate_limits.QuotaLimits, *, tokens: int = 0
) -> Iterator[float]:
    """Take whatever is given within 150 s, and yield when it was."""
    for half_seconds in range(300):
        while take(limits, tokens=tokens) == 0:
            yield half_seconds / 2
        clock.advance(0.5)


@pytest.mark.parametrize("limit", [1, 3, 60, 150])
def test_no_minute_sees_more_requests_than_its_quota(database_clock: DatabaseClock, limit: int):
    limits = rate_limits.QuotaLimits(requests=limit, tokens=None)

    requests = [(at, 1) for at in taken(database_clock, limits)]

    assert 0.9 * limit <= most_in_a_minute(requests) <= limit


@pytest.mark.parametrize(("requests", "tokens"), [(None, 1000), (3, 1000), (1, 500)])
def test_no_minute_sees_more_tokens_than_its_quota(
    database_clock: DatabaseClock, requests: int | None, tokens: int
):
    limits = rate_limits.QuotaLimits(requests=requests, tokens=tokens)
    at_once = limits.tokens_at_once
    assert at_once is not None

    batches = [(at, at_once) for at in taken(database_clock, limits, tokens=at_once)]

    assert tokens / 2 <= most_in_a_minute(batches) <= tokens


def test_a_batch_that_must_wait_is_told_how_long(database_clock: DatabaseClock):
    limits = rate_limits.QuotaLimits(requests=6, tokens=None)
    assert take(limits) == 0

    wait = take(limits)

    assert wait == pytest.approx(61 / 6 - 1)  # a second's worth was saved up
    assert take(limits) == wait, "asking does not put it off"


def test_tokens_are_limited_as_well(database_clock: DatabaseClock):
    limits = rate_limits.QuotaLimits(requests=None, tokens=6000)
    assert take(limits, tokens=600) == 0

    assert take(limits, tokens=1) == pytest.approx(61 / 9 - 1)


def test_a_quota_that_was_too_small_is_not_felt_for_hours(database_clock: DatabaseClock):
    too_small = rate_limits.QuotaLimits(requests=None, tokens=1)
    assert take(too_small, tokens=400) == 0

    mended = rate_limits.QuotaLimits(requests=None, tokens=1_000_000)

    assert take(mended, tokens=400) == 599


def test_what_was_used_beyond_is_charged_afterwards(database_clock: DatabaseClock):
    limits = rate_limits.QuotaLimits(requests=60, tokens=None)
    take(limits)

    rate_limits.charge("default", limits, requests=9, tokens=0, is_owed=True, using="default")

    assert take(limits) == pytest.approx(10 * 61 / 60 - 1)


def test_two_workers_together_take_no_more_than_there_is(
    transactional_db: None, database_clock: DatabaseClock
):
    """Two connections take as fast as they can, while no time passes."""
    limits = rate_limits.QuotaLimits(requests=60_000, tokens=None)
    both = threading.Barrier(2)

    def work() -> int:
        try:
            database_clock.connect()
            both.wait(10)
            return next(number for number in itertools.count() if take(limits))
        finally:
            connections["default"].close()

    with ThreadPoolExecutor(2) as workers:
        running = [workers.submit(work), workers.submit(work)]

    # A second's worth was saved up.
    assert sum(one.result() for one in running) == 1 + 60_000 // 61


def test_nobody_waits_for_a_lock_while_another_waits_for_its_quota(
    transactional_db: None, second_connection: psycopg.Connection
):
    limits = rate_limits.QuotaLimits(requests=1, tokens=None)
    take(limits)
    assert take(limits) > 0

    second_connection.execute("SET lock_timeout = '1ms'")
    second_connection.execute("SELECT FROM pgembed_quota FOR UPDATE")


def test_jobs_run_at_the_pace_of_the_quota(limit, make_article, make_worker, clock, database_clock):
    limit(REQUESTS_PER_MINUTE=300)
    for _ in range(8):
        make_article()
    worker = make_worker()

    def sent_after(seconds: float) -> int:
        clock.now += seconds
        database_clock.advance(seconds)
        before = len(PlayedProvider.embedded)
        while worker.step():
            pass
        return len(PlayedProvider.embedded) - before

    assert sent_after(60) == 5  # a second's worth is saved up
    assert [sent_after(61 / 300) for _ in range(5)] == [1, 1, 1, 0, 0]
    assert worker.completed == 8


def test_running_jobs_waits_for_the_quota(limit, make_article, run_jobs):
    limit(REQUESTS_PER_MINUTE=300)
    articles = [make_article() for _ in range(7)]

    assert run_jobs() == 7
    assert all(map(embedded_text, articles))


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
    assert sent["tokens"] <= 60_000 / rate_limits.LARGEST_SHARE


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
    limit(REQUESTS_PER_MINUTE=1)
    for _ in range(3):
        make_article()
    worker = make_worker()

    while worker.step():
        pass

    assert worker.held.is_empty
    assert worker.completed == 1
    waiting = Job.objects.filter(status="pending")
    assert waiting.count() == 2
    assert set(waiting.values_list("attempts", "outages")) == {(0, 0)}
    due = worker.next_due_seconds()
    assert due is None or due > PATIENCE_SECONDS


def test_another_worker_claims_nothing_that_it_could_not_send(limit, make_article, make_worker):
    limit(REQUESTS_PER_MINUTE=1)
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
    rate_limits.charge(
        "default",
        rate_limits.QuotaLimits(1, None),
        requests=2,
        tokens=0,
        is_owed=True,
        using="default",
    )
    article = make_article()
    for number in range(20):
        Note.objects.create(body=f"Note {number}")
    worker = Work(
        EmbeddingHandler(known, using="default"),
        using="default",
        worker_id=1,
        settings=conf.current(),
        inline=True,
    )

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
