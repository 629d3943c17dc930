"""A table of vectors that somebody has locked is waited for by nobody who holds jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pgembed_django.models import Job, StagedVector
from pgembed_django.queue import jobs
from pgembed_django.queue.work import Work
from tests.app.models import (
    Article,
    ArticleComment,
    ArticleCommentEmbedding,
    ArticleEmbedding,
    Note,
    NoteEmbedding,
    Page,
    PageEmbedding,
)
from tests.db.conftest import Writer, backend_pid, claim, lock_refusals, make_due

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("impatient")]

CHUNKS = 5
INDEX = "CREATE INDEX mine ON app_articlecommentembedding (was_cut)"
DELETE = "DELETE FROM app_articlecomment WHERE id = %s"


@pytest.fixture
def comments(provider, settings) -> list[ArticleComment]:
    """Two texts of several chunks, each of which is asked for by itself."""
    settings.PGEMBED_BATCH_SIZE = 1
    text = "\n\n".join(f"The {number}th owl sleeps." for number in range(CHUNKS))
    article = Article.objects.create(title="not embedded")
    return [ArticleComment.objects.create(article=article, text=text) for _ in range(2)]


@pytest.fixture
def slow(comments, make_worker: Callable[..., Work]) -> Work:
    """A worker whose units have waited so long that their text is to be stored early."""
    worker = make_worker(concurrency=1, max_attempts=1)
    worker.step()
    for unit in worker.handler.units.by_id.values():
        unit.text_due = -60.0
    return worker


def test_the_locked_table_of_one_spec_keeps_no_other_from_being_staged(
    provider, settings, make_worker, connect, run_jobs
):
    settings.PGEMBED_BATCH_SIZE = 1
    text = "\n\n".join(f"The {number}th owl sleeps." for number in range(CHUNKS))
    article = Article.objects.create(title="not embedded")
    ArticleComment.objects.create(article=article, text=text)
    Job.objects.exclude(spec__contains="Comment").delete()
    Note.objects.create(body="a note")
    worker = make_worker(concurrency=1)
    worker.step()
    other = connect()
    other.execute("LOCK TABLE app_noteembedding IN SHARE MODE")
    for unit in worker.handler.units.by_id.values():
        unit.text_due = -60.0  # the note's is tried first, and its table is locked

    worker.step(claim=False)
    worker.step(claim=False)
    provider.is_down = True
    for _ in range(6):
        worker.step(claim=False)
    other.rollback()
    provider.is_down = False
    worker.release()
    make_due()
    run_jobs()

    assert len(provider.embedded) == CHUNKS + 1


def until_done(worker: Work) -> None:
    for _ in range(10 * CHUNKS):
        worker.step()
    assert worker.held.is_empty


def assert_that_nobody_was_charged(comments: list[ArticleComment]) -> None:
    ended = list(Job.objects.values_list("status", "attempts", "crashes"))
    assert ended == [("succeeded", 0, 0)] * len(comments)


def test_text_that_is_stored_early_lets_no_deadlock_choose_a_migration(
    comments, slow, writer: Writer
):
    writer.connection.execute("SET deadlock_timeout = '200ms'")  # the migration's would be first
    writer.connection.execute(INDEX)
    writer.start(DELETE, comments[0].pk, once_waits=backend_pid())

    slow.step()

    writer.go()
    writer.end()
    writer.connection.rollback()
    until_done(slow)
    assert_that_nobody_was_charged(comments)


def test_text_is_stored_early_later_where_its_table_is_locked(comments, slow, connect, clock):
    other = connect()
    other.execute(INDEX)

    slow.step(claim=False)

    assert len(slow.handler.units.by_id) == len(comments)
    assert Job.objects.filter(status="running").count() == len(comments)
    # Not with each step: each try is a wait.
    due = slow.handler.wait_seconds
    assert due > 0
    other.rollback()
    slow.step(claim=False)
    assert not ArticleCommentEmbedding.objects.exists()
    clock.now += due
    slow.step(claim=False)
    assert ArticleCommentEmbedding.objects.filter(embedding=None).exists()
    until_done(slow)
    assert_that_nobody_was_charged(comments)


def test_a_locked_table_keeps_no_other_from_its_text(comments, make_article, make_worker, connect):
    Job.objects.filter(source_pk=str(comments[1].pk)).delete()
    make_article(contents="One more word. " * 1000)
    worker = make_worker(concurrency=1)
    worker.step()
    connect().execute(INDEX)
    for unit in worker.handler.units.by_id.values():
        unit.text_due = -60.0

    worker.step(claim=False)

    assert ArticleEmbedding.objects.exists()
    assert len(worker.handler.units.by_id) == 2


def test_vectors_are_staged_later_where_the_table_is_locked(comments, slow, connect, clock):
    other = connect()
    other.execute("LOCK TABLE pgembed_staging IN SHARE MODE")

    slow.step(claim=False)
    slow.step(claim=False)

    assert len(slow.handler.units.by_id) == len(comments)
    other.rollback()
    clock.now += 10.0
    slow.step(claim=False)
    assert StagedVector.objects.count() >= 1
    until_done(slow)
    assert_that_nobody_was_charged(comments)


def test_vectors_are_staged_later_where_an_open_delete_has_locked_the_job(
    comments, slow, provider, connect, run_jobs
):
    other = connect()
    other.execute(DELETE, [comments[0].pk])
    provider.is_down = True
    slow.step(claim=False)
    assert not StagedVector.objects.exists()
    other.rollback()

    while slow.step(claim=False):
        pass

    assert StagedVector.objects.count() == 1
    provider.is_down = False
    make_due()
    run_jobs()
    assert len(provider.embedded) == len(comments) * CHUNKS


def test_a_locked_table_keeps_no_others_vectors_from_being_stored(make_worker, connect):
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(40))
    page = Page.objects.create(slug="a", body="page")
    worker = make_worker()
    worker.step()
    other = connect()
    other.execute("LOCK TABLE app_noteembedding IN SHARE MODE")

    worker.step(claim=False)
    assert PageEmbedding.objects.filter(source=page, embedding__isnull=False).exists()

    with lock_refusals() as refused:
        for _ in range(5):
            worker.step(claim=False)
    assert len(refused) <= 5  # not one for each note, each time
    other.rollback()
    worker.step(claim=False)
    assert NoteEmbedding.objects.filter(embedding__isnull=False).count() == 40
    assert worker.held.is_empty


def test_a_failure_that_a_person_is_at_keeps_no_others_vectors_from_being_stored(
    make_worker, connect
):
    notes = Note.objects.bulk_create(Note(body=f"note {number}") for number in range(20))
    for held in claim():
        jobs.fail(held, "no", using="default")
    Note.objects.update(body="again")
    worker = make_worker()
    worker.step()
    person = connect()
    person.execute(
        "UPDATE pgembed_job SET settled_at = now() WHERE status = 'failed' AND source_pk = %s",
        [str(notes[7].pk)],
    )

    worker.step(claim=False)

    [unit] = worker.handler.units.by_id.values()
    assert unit.claim.source_pk == str(notes[7].pk)
    person.rollback()
    worker.step(claim=False)
    assert worker.held.is_empty
