"""Jobs that a provider went down with are claimed one at a time, and may start afresh."""

from __future__ import annotations

from typing import Any

import pytest

from pgembed_django.models import Job
from pgembed_django.queue import jobs
from pgembed_django.queue.jobs import suspicion

pytestmark = pytest.mark.django_db


def doubtful(*articles: Any) -> None:
    pks = [str(article.pk) for article in articles]
    Job.objects.filter(source_pk__in=pks).update(outages=1)


def claim_doubtful() -> list[jobs.Claim]:
    return jobs.claim_doubtful(["app.ArticleEmbedding"], lease=jobs.Lease(1, 600), using="default")


def test_doubtful_jobs_are_claimed_one_at_a_time_among_all_workers(make_article):
    doubtful(make_article(), make_article(), make_article())

    [first] = claim_doubtful()
    assert claim_doubtful() == []

    jobs.complete({first.id: 1}, keep_seconds=0, using="default")
    assert len(claim_doubtful()) == 1


def test_no_other_claim_takes_one_along(make_article):
    doubtful(make_article())
    other = make_article()

    found = jobs.claim(["app.ArticleEmbedding"], limit=9, lease=jobs.Lease(1, 600), using="default")

    assert [claim.source_pk for claim in found] == [str(other.pk)]


def test_two_workers_that_look_at_once_do_not_both_get_one(
    transactional_db, make_article, second_connection
):
    doubtful(make_article(), make_article())
    second_connection.execute(suspicion.TRY_LOCK)

    assert claim_doubtful() == [], "another worker is choosing"

    second_connection.rollback()
    assert len(claim_doubtful()) == 1


def test_an_open_delete_of_one_does_not_keep_the_others_from_being_claimed(
    transactional_db, make_article, second_connection
):
    doubtful(make_article(), make_article())
    [first] = claim_doubtful()

    second_connection.execute("DELETE FROM app_article WHERE id = %s", [first.source_pk])

    assert len(claim_doubtful()) == 1


def test_a_doubtful_job_is_claimed_with_no_others(make_article, make_worker):
    doubtful(make_article())
    make_article()
    worker = make_worker()

    worker.claim()

    [unit] = worker.handler.units.by_id.values()
    assert unit.is_outage_suspect


def test_a_doubtful_text_is_sent_right_after_a_plain_word(make_article, make_worker, provider):
    doubtful(make_article(title="owl", contents=""))
    worker = make_worker()

    while worker.step():
        pass

    assert provider.embedded == ["hello", "owl"]


def test_a_write_starts_afresh(make_article):
    article = make_article()
    doubtful(article)

    article.title = "Another text"
    article.save()

    assert Job.objects.get().outages == 0


def test_doubt_does_not_outlive_a_persons_retry(make_article):
    article = make_article()
    doubtful(article)
    [claim] = claim_doubtful()
    jobs.fail(claim, "went down", using="default")

    jobs.retry_failed([claim.id], using="default")

    assert Job.objects.get(status="pending").outages == 0
