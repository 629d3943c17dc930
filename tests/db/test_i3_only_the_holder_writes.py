"""I3: vectors and completion commit together, and only while the job is still held."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from pgembed_django import conf
from pgembed_django.declaration import specs
from pgembed_django.models import Attempt, Job, StagedVector
from pgembed_django.queue import jobs
from tests.app.models import Article, ArticleComment, ArticleCommentEmbedding, ArticleEmbedding
from tests.conftest import embedded_text
from tests.db.conftest import Maintenance, backend_pid, claim, expire_leases, reap

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("impatient")]

RENEW = "UPDATE pgembed_job SET lease_expires_at = now() + interval '1 minute' WHERE id = %s"
PUT_BACK = """
    UPDATE pgembed_job
    SET
        run_at = run_at + interval '1 day',
        created_at = created_at + interval '1 day',
        started_at = started_at + interval '1 day',
        lease_expires_at = lease_expires_at + interval '1 day'
"""


def rename(title: str, article: Article) -> None:
    Article.objects.filter(pk=article.pk).update(title=title)


def test_a_worker_frozen_past_its_lease_stores_nothing_over_newer_vectors(
    make_article, make_worker
):
    article = make_article(title="old")
    frozen, other = make_worker(), make_worker()
    frozen.step()
    expire_leases()
    assert reap() == ["requeued"]
    rename("new", article)
    while other.step():  # a suspect is claimed alone, and completed
        pass
    assert embedded_text(article).startswith("new")

    frozen.step(claim=False)

    assert embedded_text(article).startswith("new")
    assert frozen.held.is_empty
    assert frozen.completed == 0


def test_a_worker_frozen_past_its_lease_completes_nothing(make_article, make_worker):
    article = make_article()
    frozen, other = make_worker(), make_worker()
    frozen.step()
    expire_leases()
    reap()
    other.step()  # at work on it now

    frozen.step(claim=False)

    assert embedded_text(article) is None
    [job] = Job.objects.all()
    assert (job.status, job.worker_id, job.claims) == ("running", 2, 2)


def test_a_worker_that_lost_its_lease_leaves_the_job_for_the_next_one(
    make_article, make_worker, run_jobs
):
    article = make_article()
    frozen = make_worker()
    frozen.step()
    expire_leases()
    reap()

    frozen.step(claim=False)
    frozen.release()

    [job] = Job.objects.all()
    assert (job.status, job.crashes) == ("pending", 1)
    run_jobs()
    assert embedded_text(article)


def test_the_same_worker_that_claims_again_does_not_open_the_fence(
    make_article, make_worker, run_jobs
):
    article = make_article(title="old")
    frozen, restarted = make_worker(worker_id=7), make_worker(worker_id=7)
    frozen.step()
    expire_leases()
    reap()
    rename("new", article)
    restarted.step()
    assert Job.objects.get(status="running").worker_id == 7

    frozen.step(claim=False)
    assert embedded_text(article) is None
    restarted.step(claim=False)

    assert embedded_text(article).startswith("new")


@pytest.mark.parametrize("ending", ["retry", "release", "fail", "heartbeat"])
def test_nothing_that_was_lost_can_be_ended_or_renewed(make_article, ending):
    make_article()
    [lost] = claim()
    expire_leases()
    reap()
    [held] = jobs.claim_suspect([lost.spec], lease=jobs.Lease(1, 60), using="default")
    before = Job.objects.values().get()

    if ending == "retry":
        result = jobs.retry(lost, "no", max_attempts=5, delay_seconds=0, using="default")
    elif ending == "release":
        result = jobs.release(lost, using="default")
    elif ending == "fail":
        result = jobs.fail(lost, "no", using="default")
    else:
        found = jobs.heartbeat([lost], lease_seconds=9999, using="default")
        result = "lost" if found.lost == {lost.id} else found

    assert result == "lost"
    assert Job.objects.values().get() == before
    assert (held.id, held.token) == (lost.id, lost.token + 1)


@pytest.mark.parametrize("is_alive", [True, False])
def test_leases_that_a_jump_of_the_servers_clock_ended_are_renewed_first(
    make_article, make_worker, clock, is_alive
):
    """As after the sleep of a machine that everything runs on."""
    make_article()
    worker = make_worker()
    worker.step()
    settings = conf.current()
    maintenance = Maintenance({}, settings=settings, clock=clock)
    maintenance.reap()
    clock.now -= 3600  # an hour has passed on the server, none here
    expire_leases()

    assert maintenance.reap() == 0
    if is_alive:
        worker.held.heartbeat()
    clock.now += settings.lease_seconds / 2

    assert maintenance.reap() == (0 if is_alive else 1)


def test_what_was_written_or_claimed_before_the_servers_clock_was_put_back_is_due(
    make_article, clock
):
    spec = "app.ArticleEmbedding"
    maintenance = Maintenance(
        {spec: specs.get(spec)},
        clock=clock,
    )
    maintenance.reap()
    make_article()
    [held] = claim()
    make_article()
    with connection.cursor() as cursor:
        cursor.execute(PUT_BACK)
    clock.now += 86_400  # a day has passed here, none on the server

    assert maintenance.reap() == 1
    [due] = claim()
    assert due.source_pk != held.source_pk
    assert not Job.objects.filter(lease_expires_at__gt=Now() + timedelta(hours=1)).exists()


def test_an_expired_lease_that_nobody_took_is_still_held(make_article, make_worker):
    article = make_article()
    slow = make_worker()
    slow.step()
    expire_leases()

    slow.step(claim=False)

    assert embedded_text(article)
    assert Job.objects.get().status == "succeeded"


@pytest.mark.parametrize("crashes", [0, 2], ids=["requeued otherwise", "failed otherwise"])
def test_a_lease_that_is_renewed_while_others_are_reaped_is_not_taken_back(
    make_article, connect, writer, crashes
):
    taken, resumed = make_article(), make_article()
    claim()
    job = Job.objects.get(source_pk=str(resumed.pk))
    Job.objects.filter(pk=job.pk).update(crashes=crashes)
    expire_leases()
    # The reaper waits for this one a moment: its unit may have a newer job.
    connect().execute("UPDATE app_article SET title = 'new' WHERE id = %s", [taken.pk])
    writer.connection.autocommit = True
    writer.start(RENEW, job.pk, once_waits=backend_pid())

    results = reap()

    writer.end()
    assert results == ["busy", "lost"]
    job.refresh_from_db()
    assert (job.status, job.claims, job.crashes) == ("running", 1, crashes)
    assert not Attempt.objects.exists()
    assert reap() == ["busy"]


def test_a_worker_stops_spending_requests_on_what_it_lost(
    make_article, make_worker, provider, settings
):
    settings.PGEMBED_BATCH_SIZE = 1
    for _ in range(3):
        make_article()
    frozen = make_worker(concurrency=1)
    frozen.step()
    asked = len(provider.embedded)
    assert any(pool.queue for pool in frozen.handler.embedder.pools)  # more to ask
    expire_leases()
    reap()

    frozen.held.heartbeat()
    while frozen.step(claim=False):
        pass

    assert len(provider.embedded) == asked
    assert frozen.held.is_empty
    assert not ArticleEmbedding.objects.exclude(embedding=None).exists()


def test_a_worker_that_was_frozen_stages_and_stores_no_text_early(make_worker, provider, settings):
    settings.PGEMBED_BATCH_SIZE = 1
    article = Article.objects.create(title="no words are embedded of this one")
    ArticleComment.objects.create(article=article, text="one two three four five six seven eight")
    frozen = make_worker(concurrency=1)
    frozen.step()
    expire_leases()
    reap()

    for unit in frozen.handler.units.by_id.values():
        unit.text_due = 0.0  # long ago: its text would be stored before its vectors
    frozen.step(claim=False)

    assert not StagedVector.objects.exists()
    assert not ArticleCommentEmbedding.objects.exists()


def test_a_completion_whose_reply_was_lost_is_settled_by_the_fence(
    make_article, make_worker, run_jobs
):
    article = make_article(title="old")
    worker = make_worker()
    worker.step()
    [unit] = worker.handler.units.by_id.values()
    worker.step(claim=False)
    rename("new", article)
    run_jobs()

    # As a worker does that cannot know whether its commit arrived.
    worker.handler.units.by_id[unit.claim.id] = unit
    worker.handler.units.settle(unit)
    worker.step(claim=False)

    assert worker.held.is_empty
    assert embedded_text(article).startswith("new")
    assert not Job.objects.exclude(status="succeeded").exists()


def test_vectors_and_completion_commit_together_or_not_at_all(
    make_article, make_worker, second_connection
):
    article = make_article()
    worker = make_worker()
    worker.step()
    # What the last statement of the transaction writes is refused.
    second_connection.execute(
        "ALTER TABLE pgembed_job ADD CONSTRAINT refused CHECK (status <> 'succeeded') NOT VALID"
    )
    second_connection.commit()
    try:
        worker.step(claim=False)
        assert embedded_text(article) is None
        [job] = Job.objects.all()
        assert (job.status, job.attempts) == ("pending", 1)
        assert "refused" in job.last_error
    finally:
        second_connection.execute("ALTER TABLE pgembed_job DROP CONSTRAINT refused")
        second_connection.commit()


def test_a_reader_sees_the_old_vectors_or_the_new_ones_never_none(
    make_article, make_worker, run_jobs, connect
):
    article = make_article(title="old")
    run_jobs()
    rename("new", article)
    reader = connect(autocommit=True)
    seen = "SELECT passage FROM app_articleembedding WHERE source_id = %s AND embedding IS NOT NULL"
    worker = make_worker()
    worker.step()
    assert reader.execute(seen, [article.pk]).fetchone()[0].startswith("old")

    worker.step(claim=False)

    [[passage]] = reader.execute(seen, [article.pk]).fetchall()
    assert passage.startswith("new")


@pytest.fixture
def reset() -> Callable[[], None]:
    """Empty the tables, and let their keys begin anew: as ``flush`` does, and many test suites."""

    def reset() -> None:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE app_article, pgembed_job RESTART IDENTITY CASCADE")

    reset()
    return reset


def test_a_job_with_the_number_of_one_that_was_reset_is_not_taken_for_it(
    reset, make_article, make_worker
):
    make_article(title="first")
    slow, other = make_worker(worker_id=1), make_worker(worker_id=1)
    slow.step()
    [before] = Job.objects.values_list("pk", "claims", "worker_id", "source_pk")
    reset()
    article = make_article(title="SECOND")
    other.step()
    assert list(Job.objects.values_list("pk", "claims", "worker_id", "source_pk")) == [before]

    slow.step(claim=False)

    assert slow.held.is_empty
    assert embedded_text(article) is None
    other.step(claim=False)
    assert embedded_text(article).startswith("SECOND")


def test_a_claim_that_a_crash_of_the_server_has_taken_back_stores_nothing(
    make_article, make_worker
):
    """Claims do not wait for the disk. Here one is lost, and its number is given out again."""
    article = make_article(title="old")
    [before] = Job.objects.values()
    slow, other = make_worker(worker_id=1), make_worker(worker_id=1)
    slow.step()
    taken = Job.objects.values_list("pk", "claims", "worker_id").get()
    Job.objects.update(**before)
    rename("NEW", article)
    other.step()
    assert Job.objects.values_list("pk", "claims", "worker_id").get() == taken

    slow.step(claim=False)

    assert slow.held.is_empty
    assert embedded_text(article) is None
    other.step(claim=False)
    assert embedded_text(article).startswith("NEW")


@pytest.mark.parametrize("ending", ["retry", "release", "fail", "heartbeat", "reap"])
def test_a_job_with_the_number_of_one_that_was_reset_is_neither_ended_nor_renewed(
    reset, make_article, ending
):
    make_article()
    [lost] = claim()
    reset()
    make_article()
    [held] = claim()
    assert (held.id, held.token) == (lost.id, lost.token)
    before = Job.objects.values().get()

    match ending:
        case "retry":
            result = jobs.retry(lost, "e", max_attempts=5, delay_seconds=0, using="default")
        case "release":
            result = jobs.release(lost, using="default")
        case "fail":
            result = jobs.fail(lost, "e", using="default")
        case "heartbeat":
            result = jobs.heartbeat([lost], lease_seconds=60, using="default")
        case "reap":
            result = jobs.settling.reap_one(lost, max_crashes=3, using="default")

    assert result == (
        jobs.Held(*map(frozenset, ([], [], [lost.id]))) if ending == "heartbeat" else "lost"
    )
    assert Job.objects.values().get() == before
