"""What a person does to jobs: retry, dismiss, re-embed, pause, release; and the history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import IntegrityError, connection
from django.db.models.signals import post_delete, post_save

from pgembed_django import spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Attempt, Job, Worker
from pgembed_django.queue import jobs
from pgembed_django.queue.work import Work
from pgembed_django.spaces import reconcile
from pgembed_django.spaces.reembedding import reembed
from tests.app.models import Article, ArticleEmbedding, Page, Product
from tests.conftest import embedded_text
from tests.db.conftest import claim, expire_leases, make_due, reap, reconcile_deeply
from tests.played.provider import PlayedProvider

pytestmark = pytest.mark.django_db

KEY = "app.ArticleEmbedding"


@pytest.fixture
def make_failed(make_article: Callable[..., Article]) -> Callable[..., Job]:
    """Articles whose jobs have failed for good."""

    def make(error: str = "too bad", **values: object) -> Job:
        article = make_article(**values)
        [held] = [held for held in claim() if held.source_pk == str(article.pk)]
        assert jobs.fail(held, error, using="default") == "failed"
        return Job.objects.get(pk=held.id)

    return make


# Dismissed


def test_a_dismissed_failure_is_not_brought_back_by_the_reconciler(
    make_failed: Callable[..., Job], run_jobs: Callable[[], int]
) -> None:
    run_jobs()
    job = make_failed()

    assert jobs.dismiss([job.pk], using="default")["dismissed"] == 1

    assert reconcile_deeply(KEY) == 0
    job.refresh_from_db()
    assert (job.status, job.settled_at) == ("dismissed", None)


def test_a_dismissed_unit_does_not_keep_a_space_from_being_full(
    make_failed: Callable[..., Job], run_jobs: Callable[[], int]
) -> None:
    run_jobs()
    jobs.dismiss([make_failed().pk], using="default")
    spec = specs.of(Article)[0]

    assert spaces.last_gap(spec, spaces.active(spec, using="default"), using="default") is None


def test_a_write_overrides_a_dismissal(
    make_failed: Callable[..., Job], run_jobs: Callable[[], int]
) -> None:
    job = make_failed()
    jobs.dismiss([job.pk], using="default")

    Article.objects.filter(pk=job.source_pk).update(title="mended")
    run_jobs()

    assert "mended" in (embedded_text(Article.objects.get(pk=job.source_pk)) or "")
    job.refresh_from_db()
    assert job.settled_at is not None


def test_a_retry_overrides_a_dismissal(
    make_failed: Callable[..., Job], run_jobs: Callable[[], int]
) -> None:
    job = make_failed()
    jobs.dismiss([job.pk], using="default")

    assert jobs.retry_failed([job.pk], using="default")["retried"] == 1

    run_jobs()
    assert embedded_text(Article.objects.get(pk=job.source_pk))


def test_a_newer_failure_takes_the_place_of_a_dismissed_one(
    make_failed: Callable[..., Job],
) -> None:
    job = make_failed()
    jobs.dismiss([job.pk], using="default")
    Article.objects.filter(pk=job.source_pk).update(title="as bad")
    [held] = claim()

    assert jobs.fail(held, "again", using="default") == "failed"

    job.refresh_from_db()
    newer = Job.objects.get(pk=held.id)
    assert (job.status, job.settled_at is None) == ("dismissed", False)
    assert (newer.status, newer.settled_at, newer.parkings) == ("failed", None, 1)


def test_a_unit_is_never_failed_and_dismissed_at_once(make_failed: Callable[..., Job]) -> None:
    job = make_failed()
    jobs.dismiss([job.pk], using="default")

    with pytest.raises(IntegrityError, match="pgembed_one_open_failure_per_unit"):
        Job.objects.create(
            spec=job.spec,
            source_pk=job.source_pk,
            status="failed",
            last_error="x",
            finished_at=job.finished_at,
        )


def test_a_dismissal_ends_with_the_row(make_failed: Callable[..., Job]) -> None:
    job = make_failed()
    jobs.dismiss([job.pk], using="default")

    Article.objects.get(pk=job.source_pk).delete()

    job.refresh_from_db()
    assert job.settled_at is not None


def test_a_dismissal_is_pruned_when_its_parking_is_over_and_the_unit_is_tried_again(
    make_failed: Callable[..., Job], run_jobs: Callable[[], int]
) -> None:
    run_jobs()
    job = make_failed()
    jobs.dismiss([job.pk], using="default")
    assert jobs.prune(keep_seconds=0, using="default") == 0

    make_due()

    assert jobs.prune(keep_seconds=3600, using="default") == 1
    assert reconcile.reconcile_once(specs.of(Article)[0], using="default") == 1


# Retried


@pytest.mark.parametrize(("model", "priority"), [(Page, 10), (Product, -100)])
def test_a_retry_keeps_the_specs_own_priority(
    model: type[Page | Product], priority: int, run_jobs: Callable[[], int]
) -> None:
    spec = next(spec for spec in specs.of(model) if spec.priority == priority)
    model.objects.create(**({"slug": "a", "body": "b"} if model is Page else {"title": "a"}))
    [held] = [held for held in claim() if held.spec == spec.key]
    jobs.fail(held, "too bad", using="default")

    jobs.retry_failed([held.id], using="default", priorities=specs.priorities())

    [pending] = Job.objects.filter(status="pending", spec=spec.key)
    assert (pending.kind, pending.priority) == ("manual_retry", priority)


def test_a_retry_brings_a_job_that_backs_off_forward(
    make_article: Callable[..., Article], run_jobs: Callable[[], int]
) -> None:
    article = make_article()
    [held] = claim()
    jobs.retry(held, "later", max_attempts=5, delay_seconds=3600, using="default")
    assert run_jobs() == 0

    assert jobs.retry_failed([held.id], using="default")["forward"] == 1

    run_jobs()
    assert embedded_text(article)
    assert jobs.retry_failed([held.id], using="default")["gone"] == 1


# The history


def test_a_running_write_stays_awaited_beside_a_retried_gap(make_article) -> None:
    article = make_article()
    Job.objects.all().delete()
    jobs.enqueue(KEY, [str(article.pk)], kind=Job.Kind.RECONCILER, priority=0, using="default")
    [gap] = claim()
    jobs.fail(gap, "bad", using="default")
    Article.objects.update(title="written")
    [write] = claim()
    jobs.retry_failed([gap.id], using="default", priorities={KEY: 0})

    assert jobs.release(write, using="default") == "superseded"

    assert Job.objects.get(status="pending").is_awaited


def test_no_receiver_of_signals_is_in_the_way(make_article) -> None:
    make_article()
    [held] = claim()
    jobs.complete({held.id: 1}, keep_seconds=60, using="default")()
    Job.objects.update(finished_at="2020-01-01T00:00:00Z")

    def refuse(sender: Any, **_: object) -> None:
        raise ValueError(sender)

    for signal in (post_save, post_delete):
        signal.connect(refuse)
    try:
        assert jobs.pause("spec", KEY, by="ada", using="default")
        assert jobs.resume("spec", KEY, using="default")
        assert jobs.prune(keep_seconds=1, using="default") == 1
    finally:
        for signal in (post_save, post_delete):
            signal.disconnect(refuse)


def test_each_try_that_ends_in_an_error_is_noted(make_article: Callable[..., Article]) -> None:
    worker = Worker.objects.create(host="host", pid=17, version="1")
    make_article()
    for error in ("first", "second"):
        [held] = claim(worker_id=worker.pk)
        jobs.retry(held, error, max_attempts=2, delay_seconds=0, using="default")

    noted = Attempt.objects.order_by("id").values_list("outcome", "worker", "error")
    assert list(noted) == [
        ("retried", "host:17", "first"),
        ("failed", "host:17", "second"),
    ]
    assert all(attempt.ended_at >= attempt.started_at for attempt in Attempt.objects.all())


def test_a_lost_worker_and_an_outage_are_noted_but_no_plain_release(
    make_article: Callable[..., Article],
) -> None:
    make_article()
    [held] = claim(worker_id=5)
    jobs.release(held, using="default")
    [held] = claim(worker_id=5)
    jobs.release(held, using="default", reason="went down", outages=1)
    Job.objects.update(outages=0)
    [held] = claim(worker_id=5)
    expire_leases()
    reap()

    noted = Attempt.objects.order_by("id").values_list("outcome", "worker", "error")
    assert list(noted) == [("outage", "#5", "went down"), ("crashed", "#5", "worker lost")]


def test_a_try_of_a_job_that_was_lost_is_not_noted(make_article: Callable[..., Article]) -> None:
    make_article()
    [held] = claim()
    jobs.release(held, using="default")

    assert jobs.retry(held, "late", max_attempts=5, delay_seconds=0, using="default") == "lost"

    assert not Attempt.objects.exists()


def test_history_is_pruned_after_a_week_but_not_that_of_open_failures(
    make_failed: Callable[..., Job],
) -> None:
    job, dismissed = make_failed(), make_failed()
    jobs.dismiss([dismissed.pk], using="default")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgembed_attempt SET ended_at = now() - interval '8 days'")

    assert jobs.prune(keep_seconds=1e9, using="default") == 1

    assert [attempt.source_pk for attempt in Attempt.objects.all()] == [job.source_pk]


def test_an_attempt_takes_as_long_as_it_took_on_the_last_night_of_summer_time(
    make_failed: Callable[..., Job], settings: Any
) -> None:
    """With USE_TZ off a time has no offset."""
    make_failed()
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgembed_attempt SET started_at = '2026-10-25 00:59:50+00', "
            "ended_at = '2026-10-25 01:00:10+00'"
        )

    assert Attempt.objects.get().seconds == 20


# Re-embedded


def test_a_unit_is_embedded_anew_though_its_text_is_the_same(
    provider: type[PlayedProvider],
    make_article: Callable[..., Article],
    run_jobs: Callable[[], int],
) -> None:
    article = make_article()
    run_jobs()
    before = ArticleEmbedding.objects.get(source=article)
    provider.reset()

    assert reembed(specs.of(Article)[0], [str(article.pk)], using="default") == (1, [])

    assert ArticleEmbedding.objects.get(source=article).embedding is not None  # found until then
    run_jobs()
    after = ArticleEmbedding.objects.get(source=article)
    assert after.pk != before.pk
    assert after.chunk_digest == before.chunk_digest
    assert len(provider.embedded) == 1


# Released


def test_a_job_of_a_dead_worker_is_released_with_a_crash(
    make_article: Callable[..., Article], run_jobs: Callable[[], int]
) -> None:
    article = make_article()
    [held] = claim(worker_id=5)

    assert jobs.reap_held([held.id], max_crashes=3, using="default")["released"] == 1

    assert Job.objects.get().crashes == 1
    assert jobs.hold([held], using="default").lost == {held.id}
    run_jobs()
    assert embedded_text(article)
    assert jobs.reap_held([held.id], max_crashes=3, using="default")["gone"] == 1


@pytest.mark.django_db(transaction=True)
def test_what_a_deleter_holds_is_busy_and_what_it_has_deleted_is_gone(
    make_article: Callable[..., Article], second_connection: psycopg.Connection
) -> None:
    article, _ = make_article(), make_article()
    ids = [held.id for held in claim(worker_id=5)]
    second_connection.execute("DELETE FROM app_article WHERE id = %s", [article.pk])

    first = jobs.reap_held([*ids, 999_999], max_crashes=3, using="default")
    second_connection.commit()
    second = jobs.reap_held(ids, max_crashes=3, using="default")

    assert first == {"released": 1, "busy": 1, "gone": 1}
    assert second == {"gone": 2}


@pytest.mark.django_db(transaction=True)
def test_in_repeatable_read_what_another_has_settled_just_now_is_busy_and_then_gone(
    make_failed: Callable[..., Job], connect: Callable[..., psycopg.Connection]
) -> None:
    settled, failed = make_failed(), make_failed()
    other = connect(autocommit=True)

    def settle_first(execute, sql, parameters, *rest):
        if "WITH failure" in sql and parameters[0] == settled.pk:
            other.execute("UPDATE pgembed_job SET settled_at = now() WHERE id = %s", [settled.pk])
        return execute(sql, parameters, *rest)

    connection.connection.execute("SET default_transaction_isolation = 'repeatable read'")
    with connection.execute_wrapper(settle_first):
        first = jobs.retry_failed([settled.pk, failed.pk], using="default")
    second = jobs.retry_failed([settled.pk], using="default")
    connection.connection.execute("RESET default_transaction_isolation")

    assert first == {"retried": 1, "busy": 1}
    assert second == {"gone": 1}


@pytest.mark.django_db(transaction=True)
def test_a_failure_that_a_deleter_holds_is_busy_and_then_gone(
    make_failed: Callable[..., Job], second_connection: psycopg.Connection
) -> None:
    failed, other = make_failed(), make_failed()
    second_connection.execute("DELETE FROM app_article WHERE id = %s", [failed.source_pk])

    first = jobs.dismiss([failed.pk, other.pk, 999_999], using="default")
    second_connection.commit()
    second = jobs.dismiss([failed.pk, other.pk], using="default")

    assert first == {"dismissed": 1, "gone": 1, "busy": 1}
    assert second == {"gone": 2}


def test_a_release_may_be_the_last_crash(make_article: Callable[..., Article]) -> None:
    make_article()
    [held] = claim(worker_id=5)

    assert jobs.reap_held([held.id], max_crashes=1, using="default")["failed"] == 1

    assert Job.objects.get().last_error == "worker lost"


# Paused


def test_a_paused_spec_is_not_claimed_until_it_is_resumed(
    make_article: Callable[..., Article], run_jobs: Callable[[], int]
) -> None:
    article = make_article()
    Page.objects.create(slug="page", body="of another spec")
    assert jobs.pause("spec", KEY, by="ada", using="default")
    assert not jobs.pause("spec", KEY, by="bob", using="default")
    assert jobs.paused(using="default").specs == {KEY: "ada"}

    assert run_jobs() == 1
    assert embedded_text(article) is None

    assert jobs.resume("spec", KEY, using="default")
    assert not jobs.resume("spec", KEY, using="default")
    assert run_jobs() == 1
    assert embedded_text(article)


def test_a_paused_provider_gets_no_text_but_full_text_search_does(
    provider: type[PlayedProvider],
    make_article: Callable[..., Article],
    run_jobs: Callable[[], int],
) -> None:
    article = make_article()
    jobs.pause("provider", "default", by="ada", using="default")

    assert run_jobs() == 0

    assert not provider.embedded
    assert ArticleEmbedding.objects.get(source=article).embedding is None
    jobs.resume("provider", "default", using="default")
    make_due()
    assert run_jobs() == 1
    assert embedded_text(article)


def test_a_worker_that_runs_notices_a_pause_within_seconds(
    make_worker: Callable[..., Work], make_article: Callable[..., Article]
) -> None:
    worker = make_worker()
    worker.step()
    jobs.pause("spec", KEY, by="ada", using="default")
    worker.handler.live.outdate()  # the five seconds are over
    make_article()

    assert not worker.step()
    assert worker.next_due_seconds() is None
