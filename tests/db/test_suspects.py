"""What has to go alone, since a worker died with it, keeps no other row waiting for long."""

from __future__ import annotations

from typing import Any

import pytest

from pgembed_django.models import Job
from pgembed_django.queue import work
from pgembed_django.queue.work import Work
from tests.app.models import Article, ArticleComment, ArticleCommentEmbedding
from tests.conftest import embedded_text

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("impatient")]

DELETE = "DELETE FROM app_article WHERE id = %s"


def suspect(row: Any) -> None:
    """Let a worker have died with this row."""
    assert Job.objects.filter(source_pk=str(row.pk), status="pending").update(crashes=1)


def steps(worker: Work, count: int = 10) -> None:
    for _ in range(count):
        worker.step()


@pytest.fixture(autouse=True)
def looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "SUSPICIOUS_EVERY", 1)


@pytest.fixture
def make_long(provider, settings):
    """Rows that take the provider five steps each."""
    settings.PGEMBED_BATCH_SIZE = 1
    article = Article.objects.create(title="not embedded")
    text = "\n\n".join(f"The {number}th owl sleeps." for number in range(5))
    return lambda: ArticleComment.objects.create(article=article, text=text)


def test_nothing_is_claimed_beside_a_suspect(make_long, make_article, make_worker):
    alone = make_long()
    suspect(alone)
    worker = make_worker(concurrency=1)
    worker.step()
    assert {unit.claim.crashes for unit in worker.handler.units.by_id.values()} == {1}
    ordinary = make_article()

    held = []
    while not ArticleCommentEmbedding.objects.filter(source=alone).exists():
        worker.step()
        held.append(len(worker.handler.units.by_id))

    assert len(held) > 3
    assert set(held[:-1]) == {1}
    steps(worker, 2)
    assert embedded_text(ordinary)


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


def test_others_wait_no_longer_than_a_second_for_a_suspect_to_be_alone(
    make_long, make_article, make_worker, clock
):
    make_long()
    worker = make_worker(concurrency=1, batch_size=32, claim_limit=2)
    worker.step()
    alone = make_article()
    suspect(alone)
    worker.step()  # by turns with the others
    ordinary = make_article()
    worker.step()
    assert len(worker.handler.units.by_id) == 1  # it waits for the long one to end

    clock.now += 1.1
    worker.step()

    assert {unit.claim.source_pk for unit in worker.handler.units.by_id.values()} >= {
        str(ordinary.pk)
    }
    clock.now += 3.9
    steps(worker, 20)
    assert embedded_text(alone)


def test_a_suspect_has_its_turn_however_many_long_rows_there_are(
    make_long, make_article, make_worker, clock
):
    make_long()
    worker = make_worker(concurrency=1, batch_size=32, claim_limit=2)
    worker.step()
    alone = make_article()
    suspect(alone)

    rows = [make_long() for _ in range(60)]
    for _ in range(300):
        clock.now += 1.0
        worker.step()

    assert embedded_text(alone)
    assert ArticleCommentEmbedding.objects.filter(source=rows[5]).exists()
