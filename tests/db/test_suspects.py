"""A job with which a worker died, or a provider went down, is claimed alone, by turns."""

from __future__ import annotations

from typing import Any

import pytest

from pgembed_django.core import locks
from pgembed_django.models import Job
from pgembed_django.queue import jobs, lanes
from pgembed_django.queue.work import Work
from tests.app.models import Article, ArticleComment, ArticleCommentEmbedding
from tests.conftest import embedded_text

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("impatient")]

DELETE = "DELETE FROM app_article WHERE id = %s"
KEYS = ["app.ArticleEmbedding"]
CRASH, OUTAGE = {"crashes": 1}, {"outages": 1}
either = pytest.mark.parametrize("suspicion", [CRASH, OUTAGE], ids=["crash", "outage"])


def suspect(*rows: Any, **suspicion: int) -> None:
    """Let a worker have died with these rows, or their provider have gone down."""
    pks = [str(row.pk) for row in rows]
    pending = Job.objects.filter(source_pk__in=pks, status="pending")
    assert pending.update(**(suspicion or CRASH)) == len(rows)


def claim_suspect() -> list[jobs.Claim]:
    return jobs.claim_suspect(KEYS, lease=jobs.Lease(1, 600), using="default")


def steps(worker: Work, count: int = 10) -> None:
    for _ in range(count):
        worker.step()


def held_by(worker: Work) -> set[str]:
    return {unit.claim.source_pk for unit in worker.handler.units.by_id.values()}


@pytest.fixture(autouse=True)
def looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "SUSPECTS_EVERY", 1)


@pytest.fixture
def make_long(provider, settings):
    """Rows that take the provider five steps each."""
    settings.PGEMBED_BATCH_SIZE = 1
    article = Article.objects.create(title="not embedded")
    text = "\n\n".join(f"The {number}th owl sleeps." for number in range(5))
    return lambda: ArticleComment.objects.create(article=article, text=text)


# Among all workers


@either
def test_a_claim_of_others_takes_no_suspect_along(make_article, suspicion):
    suspect(make_article(), **suspicion)
    other = make_article()

    found = jobs.claim(KEYS, limit=9, lease=jobs.Lease(1, 600), using="default")

    assert [claim.source_pk for claim in found] == [str(other.pk)]


def test_texts_that_a_provider_went_down_with_are_claimed_one_at_a_time(make_article):
    """Or an innocent one would be charged when it goes down with another worker's."""
    suspect(make_article(), make_article(), make_article(), **OUTAGE)

    [first] = claim_suspect()
    assert not jobs.is_suspect_due(KEYS, using="default")
    assert claim_suspect() == []

    jobs.complete({first.id: 1}, keep_seconds=0, using="default")
    assert len(claim_suspect()) == 1


def test_rows_that_a_worker_died_with_wait_for_no_other_worker(make_article):
    suspect(make_article(), make_article())

    assert len(claim_suspect()) == 1
    assert len(claim_suspect()) == 1


def test_two_workers_that_look_at_once_do_not_both_get_one(make_article, second_connection):
    suspect(make_article(), make_article(), **OUTAGE)
    lock = {"name": "pgembed_job_suspect", "number": 0}
    second_connection.execute(locks.TRY_IN_TRANSACTION, lock)

    assert claim_suspect() == [], "another worker is choosing"

    second_connection.rollback()
    assert len(claim_suspect()) == 1


def test_an_open_delete_of_one_does_not_keep_the_others_from_being_claimed(
    make_article, second_connection
):
    suspect(make_article(), make_article(), **OUTAGE)
    [first] = claim_suspect()

    second_connection.execute(DELETE, [first.source_pk])

    assert len(claim_suspect()) == 1


@either
def test_a_write_starts_afresh(make_article, suspicion):
    article = make_article()
    suspect(article, **suspicion)

    article.title = "Another text"
    article.save()

    assert (Job.objects.get().crashes, Job.objects.get().outages) == (0, 0)


def test_a_suspicion_does_not_outlive_a_persons_retry(make_article):
    suspect(make_article(), **OUTAGE)
    [claim] = claim_suspect()
    jobs.fail(claim, "went down", using="default")

    jobs.retry_failed([claim.id], using="default")

    assert Job.objects.get(status="pending").outages == 0


# In one worker


def test_nothing_is_claimed_beside_a_row_that_a_worker_died_with(
    make_long, make_article, make_worker
):
    alone = make_long()
    suspect(alone)
    worker = make_worker(concurrency=1)
    worker.step()
    assert held_by(worker) == {str(alone.pk)}
    ordinary = make_article()

    held = []
    while not ArticleCommentEmbedding.objects.filter(source=alone).exists():
        worker.step()
        held.append(len(held_by(worker)))

    assert len(held) > 3
    assert set(held[:-1]) == {1}
    steps(worker, 2)
    assert embedded_text(ordinary)


def test_beside_a_text_that_a_provider_went_down_with_others_go_on_in_requests_of_their_own(
    make_long, make_article, make_worker
):
    alone = make_long()
    suspect(alone, **OUTAGE)
    worker = make_worker(concurrency=2)
    worker.step()
    assert held_by(worker) == {str(alone.pk)}
    ordinary = make_article()
    sent: list[set[str]] = []
    held: list[set[str]] = []

    while not embedded_text(ordinary):
        worker.step()
        sent += [{one.unit.claim.source_pk for one in b.wanted} for b in embedder(worker).batches]
        held.append(held_by(worker))

    assert {str(alone.pk), str(ordinary.pk)} in held
    assert {str(alone.pk)} in sent
    assert all(units == {str(alone.pk)} for units in sent if str(alone.pk) in units)


def embedder(worker: Work) -> Any:
    return worker.handler.embedder


def test_a_suspect_is_not_claimed_beside_others(make_long, make_article, make_worker):
    long = make_long()
    worker = make_worker(concurrency=1, batch_size=32, claim_limit=2)
    worker.step()
    alone = make_article()
    suspect(alone)

    held = []
    while not embedded_text(alone):
        worker.step()
        held.append(held_by(worker))

    assert {str(long.pk), str(alone.pk)} not in held
    assert held.count({str(long.pk)}) > 3


def test_a_suspect_and_the_others_take_turns(make_long, make_article, make_worker):
    make_long()
    worker = make_worker(concurrency=1, batch_size=32, claim_limit=2)
    worker.step()
    alone, another = make_article(), make_article()
    suspect(alone, another)

    rows = [make_long() for _ in range(20)]
    while not (embedded_text(alone) and embedded_text(another)):
        worker.step()

    stored = ArticleCommentEmbedding.objects
    assert stored.filter(source=rows[0]).exists(), "between the two"
    assert not stored.filter(source=rows[19]).exists(), "before the last of the others"


def test_a_text_that_a_provider_went_down_with_is_sent_right_after_a_health_check(
    make_article, make_worker, provider
):
    suspect(make_article(title="owl", contents=""), **OUTAGE)
    worker = make_worker()

    while worker.step():
        pass

    assert provider.embedded == ["hello", "owl"]


def test_others_are_claimed_while_a_row_that_is_held_is_being_deleted(
    make_article, make_worker, connect
):
    deleted = make_article()
    worker = make_worker()
    worker.step()
    other = connect()
    other.execute(DELETE, [deleted.pk])
    alone, ordinary = make_article(), make_article()
    suspect(alone)

    steps(worker)

    assert embedded_text(alone)
    assert embedded_text(ordinary)
    other.commit()
    steps(worker, 2)
    assert worker.held.is_empty
    assert not embedded_text(deleted)


def test_others_are_claimed_while_the_suspect_itself_is_being_deleted(
    make_article, make_worker, connect
):
    deleted = make_article()
    suspect(deleted)
    worker = make_worker()
    worker.step()
    other = connect()
    other.execute(DELETE, [deleted.pk])
    alone, ordinary = make_article(), make_article()
    suspect(alone)

    steps(worker)

    assert embedded_text(alone)
    assert embedded_text(ordinary)
    other.rollback()
    steps(worker, 2)
    assert embedded_text(deleted)
