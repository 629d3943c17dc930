"""I1: after the last commit, without the reconciler, every row's vectors are of its final text."""

from __future__ import annotations

import pytest

from pgembed_django.core import database
from pgembed_django.models import Job
from pgembed_django.queue import jobs
from tests.app.models import Article
from tests.conftest import embedded_text
from tests.db.conftest import backend_pid, claim, expire_leases, make_due, reap

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("impatient")]

NEW_TITLE = "UPDATE app_article SET title = %s WHERE id = %s"


def rename(title: str, article: Article) -> None:
    Article.objects.filter(pk=article.pk).update(title=title)


def test_a_write_that_commits_after_the_claim_is_embedded_too(
    make_article, second_connection, run_jobs
):
    article = make_article(title="old")
    second_connection.execute(NEW_TITLE, ["new", article.pk])

    run_jobs()  # must not take the job while the write is open
    assert embedded_text(article) is None
    second_connection.commit()
    run_jobs()

    assert embedded_text(article).startswith("new")


def test_an_open_write_costs_the_other_rows_nothing(make_article, second_connection, run_jobs):
    article, other = make_article(title="old"), make_article(title="other")
    second_connection.execute(NEW_TITLE, ["new", article.pk])

    run_jobs()

    assert embedded_text(other).startswith("other")


def test_a_write_that_is_rolled_back_leaves_the_job_that_was_there(
    make_article, second_connection, run_jobs
):
    article = make_article(title="old")
    second_connection.execute(NEW_TITLE, ["new", article.pk])
    second_connection.rollback()

    run_jobs()

    assert embedded_text(article).startswith("old")


def test_a_write_while_the_worker_is_at_the_row_is_embedded_after_it(
    make_article, make_worker, run_jobs
):
    article = make_article(title="old")
    worker = make_worker()
    worker.step()

    rename("new", article)
    worker.step(claim=False)
    assert embedded_text(article).startswith("old")
    run_jobs()

    assert embedded_text(article).startswith("new")


def test_a_write_that_is_open_while_the_worker_stores_is_embedded_after_it(
    make_article, make_worker, second_connection, run_jobs
):
    article = make_article(title="old")
    worker = make_worker()
    worker.step()
    second_connection.execute(NEW_TITLE, ["new", article.pk])

    worker.step()  # stores, and must not wait for the writer
    assert embedded_text(article).startswith("old")
    second_connection.commit()
    run_jobs()

    assert embedded_text(article).startswith("new")


def test_a_row_is_never_at_two_workers_at_once(make_article, make_worker):
    article = make_article(title="old")
    first, second = make_worker(), make_worker()
    first.step()
    rename("new", article)

    second.step()
    assert second.held.is_empty
    first.step(claim=False)
    second.step()
    second.step()

    assert embedded_text(article).startswith("new")


def test_a_write_in_a_savepoint_that_is_rolled_back_loses_none_of_the_others(
    make_article, second_connection, run_jobs
):
    article, other = make_article(title="old"), make_article(title="old")
    second_connection.execute("SAVEPOINT a")
    second_connection.execute(NEW_TITLE, ["lost", article.pk])
    second_connection.execute(NEW_TITLE, ["lost", other.pk])
    second_connection.execute("ROLLBACK TO SAVEPOINT a")  # and its lock on the job with it
    second_connection.execute(NEW_TITLE, ["new", article.pk])

    run_jobs()
    assert (embedded_text(article), embedded_text(other)[:3]) == (None, "old")
    second_connection.commit()
    run_jobs()

    assert (embedded_text(article)[:3], embedded_text(other)[:3]) == ("new", "old")


def test_a_claim_between_a_savepoint_and_the_write_after_it_loses_nothing(
    make_article, second_connection, make_worker, run_jobs
):
    article = make_article(title="old")
    second_connection.execute("SAVEPOINT a")
    second_connection.execute(NEW_TITLE, ["lost", article.pk])
    second_connection.execute("ROLLBACK TO SAVEPOINT a")
    worker = make_worker()
    worker.step()  # the lock went with the savepoint: the job is claimed, the old text read
    second_connection.execute(NEW_TITLE, ["new", article.pk])
    second_connection.commit()

    worker.step(claim=False)
    run_jobs()

    assert embedded_text(article).startswith("new")


def test_many_writes_in_one_transaction_give_one_job(make_article, second_connection, run_jobs):
    article = make_article(title="old")
    run_jobs()
    for number in range(10):
        second_connection.execute(NEW_TITLE, [f"new {number}", article.pk])
    second_connection.commit()

    [job] = Job.objects.exclude(status="succeeded")
    assert (job.status, job.claims) == ("pending", 0)
    run_jobs()
    assert embedded_text(article).startswith("new 9")


@pytest.mark.parametrize("ending", ["retry", "release", "fail", "reap", "reap for the last time"])
def test_what_ends_beside_a_newer_job_is_superseded_by_it(make_article, run_jobs, ending):
    article = make_article(title="old")
    [held] = claim()
    rename("new", article)
    [newer] = Job.objects.filter(status="pending")

    assert end(ending, held) == "superseded"

    assert list(Job.objects.values_list("pk", "attempts", "crashes")) == [(newer.pk, 0, 0)]
    run_jobs()
    assert embedded_text(article).startswith("new")


@pytest.mark.parametrize("ending", ["retry", "release", "fail", "reap", "reap for the last time"])
def test_what_ends_while_a_newer_job_is_open_loses_nothing(
    make_article, second_connection, run_jobs, ending
):
    article = make_article(title="old")
    [held] = claim()
    second_connection.execute(NEW_TITLE, ["new", article.pk])

    result = end(ending, held)
    second_connection.commit()
    if result == "busy":
        assert end(ending, held) == "superseded"
    make_due()
    run_jobs()

    assert embedded_text(article).startswith("new")
    assert not Job.objects.exclude(status="succeeded").filter(settled_at=None).exists()


@pytest.mark.parametrize("ending", ["retry", "release", "reap"])
def test_a_newer_job_that_commits_while_the_older_one_ends_supersedes_it(
    make_article, writer, run_jobs, monkeypatch, ending
):
    monkeypatch.setattr(database, "BRIEFLY", "20s")  # a commit may take longer than 10 ms
    article = make_article(title="old")
    [held] = claim()
    if ending == "reap":
        expire_leases()
    writer.connection.execute(NEW_TITLE, ["new", article.pk])
    writer.start("COMMIT", once_waits=backend_pid())  # in the unique index, for the newer job

    assert end(ending, held) == "superseded"

    writer.end()
    run_jobs()
    assert embedded_text(article).startswith("new")


def end(ending: str, held: jobs.Claim) -> str:
    if ending == "retry":
        return jobs.retry(held, "no luck", max_attempts=5, delay_seconds=60, using="default")
    if ending == "release":
        return jobs.release(held, using="default")
    if ending == "fail":
        return jobs.fail(held, "no luck", using="default")
    expire_leases()
    [result] = reap(max_crashes=1 if "last" in ending else 3)
    return result


@pytest.mark.parametrize(
    "waiting",
    [
        {"run_at": "2999-01-01T00:00:00Z"},
        {"priority": -2000, "kind": "backfill", "is_awaited": False},
        {"kind": "backfill", "is_awaited": False},
        {"attempts": 4, "last_error": "no luck", "run_at": "2999-01-01T00:00:00Z"},
        {"attempts": 4, "last_error": "no luck"},
        {"crashes": 2, "last_error": "worker lost"},
        {"outages": 2, "last_error": "went down"},
    ],
    ids=[
        "parked",
        "in a low lane",
        "not awaited",
        "backing off",
        "tried before",
        "suspect",
        "doubtful",
    ],
)
def test_a_write_brings_the_job_that_waits_forward_and_starts_it_afresh(make_article, waiting):
    article = make_article(title="old")
    Job.objects.update(**waiting)

    rename("new", article)

    [held] = claim()
    assert (held.attempts, held.crashes, held.outages, held.kind) == (0, 0, 0, "write")
    assert (Job.objects.get().last_error, Job.objects.get().is_awaited) == ("", True)
