"""I4: nothing searchable outlives its row, whatever a worker does at that moment."""

from __future__ import annotations

from collections.abc import Callable

import pgtrigger
import psycopg
import pytest
from django.db import connection, transaction

from pgembed_django import spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Job, StagedVector
from pgembed_django.queue import jobs
from pgembed_django.spaces import reconcile
from tests.app.models import (
    Article,
    ArticleComment,
    ArticleCommentEmbedding,
    ArticleEmbedding,
    Category,
    Note,
    NoteEmbedding,
)
from tests.conftest import embedded_text
from tests.db.conftest import claim, until_waiting

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("impatient")]

# The foreign keys are Django's, which does its cascades by statements of its own.
WAYS = {
    "delete": "DELETE FROM app_article WHERE id = %(pk)s",
    "bulk delete": "DELETE FROM app_article",
    "cascade": "DELETE FROM app_category",
    "truncate": "TRUNCATE app_article CASCADE",
    "key change": "UPDATE app_article SET id = id + 1000000 WHERE id = %(pk)s",
    "leaving when": "UPDATE app_article SET published_time = NULL WHERE id = %(pk)s",
}
by_row = pytest.mark.parametrize("way", [way for way in WAYS if way != "truncate"])
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture
def article(make_article):
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE app_article ADD CONSTRAINT cascading FOREIGN KEY (category_id) "
            "REFERENCES app_category ON DELETE CASCADE"
        )
    yield make_article(title="old", category=Category.objects.create(name="c"))
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE app_article DROP CONSTRAINT cascading")


def stored_of(pk: int) -> int:
    return ArticleEmbedding.objects.filter(source_id=pk).count()


def take(own: psycopg.Connection, way: str, pk: int) -> None:
    own.execute(WAYS[way], {"pk": pk})


def assert_clean(pk: int) -> None:
    """Nothing is left of the unit: no vector, no job, no failure."""
    assert stored_of(pk) == 0
    left = Job.objects.filter(source_pk=str(pk)).exclude(status="succeeded")
    assert not left.filter(settled_at=None).exists()


@every_way
def test_the_row_goes_before_the_worker_stores(
    article, make_worker, second_connection, run_jobs, way
):
    worker = make_worker()
    worker.step()
    take(second_connection, way, article.pk)
    second_connection.commit()

    worker.step(claim=False)
    assert stored_of(article.pk) == 0
    assert worker.held.is_empty
    run_jobs()

    assert_clean(article.pk)


@every_way
def test_the_row_goes_while_the_worker_stores(article, make_worker, writer, run_jobs, way):
    worker = make_worker()
    worker.step()

    with transaction.atomic():
        worker.step(claim=False)  # stored, and not committed yet
        writer.start(WAYS[way].replace("%(pk)s", str(article.pk)))
        until_waiting(writer)  # for the running job
    writer.end()
    writer.connection.commit()

    assert stored_of(article.pk) == 0
    run_jobs()
    assert_clean(article.pk)


@every_way
def test_the_row_goes_while_it_is_open_and_the_worker_stores(
    article, make_worker, second_connection, run_jobs, way
):
    worker = make_worker()
    worker.step()
    take(second_connection, way, article.pk)

    worker.step(claim=False)  # must neither wait nor store
    assert stored_of(article.pk) == 0
    second_connection.commit()
    worker.step(claim=False)

    assert worker.held.is_empty
    run_jobs()
    assert_clean(article.pk)


@every_way
def test_a_row_whose_going_is_rolled_back_is_embedded(
    article, make_worker, second_connection, run_jobs, way
):
    worker = make_worker()
    worker.step()
    take(second_connection, way, article.pk)
    worker.step(claim=False)
    second_connection.rollback()

    worker.step(claim=False)

    assert embedded_text(article).startswith("old")
    assert worker.completed == 1


@every_way
def test_a_row_that_is_stored_goes_in_the_writers_own_transaction(
    article, second_connection, run_jobs, way
):
    run_jobs()
    assert stored_of(article.pk)

    take(second_connection, way, article.pk)

    count = "SELECT count(*) FROM app_articleembedding WHERE source_id = %s"
    assert second_connection.execute(count, [article.pk]).fetchone() == (0,)
    second_connection.rollback()
    assert stored_of(article.pk)


@every_way
def test_a_job_that_is_claimed_while_the_row_goes_brings_nothing_back(
    article, make_worker, second_connection, run_jobs, way
):
    """The job is pending when the writer comes, and is held by it until it commits."""
    take(second_connection, way, article.pk)
    worker = make_worker()

    worker.step()
    assert worker.held.is_empty
    second_connection.commit()
    worker.step()
    worker.step()
    run_jobs()

    assert_clean(article.pk)


@by_row
def test_a_job_that_the_reconciler_adds_while_the_row_goes_brings_nothing_back(
    article, make_worker, second_connection, run_jobs, way
):
    """The trigger has run by then: only the pending job that it left can keep others out."""
    Job.objects.all().delete()
    worker = make_worker()
    take(second_connection, way, article.pk)

    # The row is still there for everybody else, has no vectors, and no job that is visible.
    reconcile.reconcile_once(specs.get("app.ArticleEmbedding"), using="default")
    worker.step()
    second_connection.commit()
    worker.step(claim=False)
    worker.release()
    assert stored_of(article.pk) == 0

    run_jobs()
    assert_clean(article.pk)


@by_row
def test_a_retry_that_a_person_asks_for_while_the_row_goes_brings_nothing_back(
    article, make_worker, second_connection, run_jobs, way
):
    [held] = claim()
    jobs.fail(held, "no", using="default")
    worker = make_worker()
    take(second_connection, way, article.pk)

    asked = jobs.retry_failed([held.id], using="default")
    assert asked["busy"] == 1
    worker.step()
    second_connection.commit()
    worker.step()
    worker.step()
    run_jobs()

    assert_clean(article.pk)


@by_row
def test_an_old_snapshot_that_takes_the_row_leaves_a_job_that_cleans_up(
    article, make_worker, connect, run_jobs, way
):
    """REPEATABLE READ: the vectors were stored after the snapshot, so nobody there sees them."""
    own = connect()
    own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    own.execute("SELECT count(*) FROM app_article")
    worker = make_worker()
    worker.step()
    worker.step(claim=False)
    assert stored_of(article.pk)

    take(own, way, article.pk)
    own.commit()
    run_jobs()

    assert_clean(article.pk)


@by_row
def test_an_old_snapshot_that_takes_the_row_from_a_worker_leaves_a_job_that_cleans_up(
    article, make_worker, connect, run_jobs, way
):
    own = connect()
    own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    own.execute("SELECT count(*) FROM app_article")
    worker = make_worker()
    worker.step()  # claimed after the snapshot
    take(own, way, article.pk)
    own.commit()

    worker.step(claim=False)
    run_jobs()

    assert_clean(article.pk)


def test_an_old_snapshot_that_truncates_leaves_the_rest_to_the_reconciler(
    make_article, make_worker, connect, run_jobs
):
    """The limit that docs/guarantees.md names: there is no job for rows it cannot see."""
    own = connect()
    own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    own.execute("SELECT count(*) FROM app_category")
    article = make_article()
    worker = make_worker()
    worker.step()
    worker.step(claim=False)
    assert stored_of(article.pk)
    own.execute(WAYS["truncate"])
    own.commit()

    reconcile.reconcile_once(specs.get("app.ArticleEmbedding"), using="default")
    run_jobs()

    assert_clean(article.pk)


def test_a_row_that_goes_and_comes_back_under_its_key_is_embedded_anew(
    article, make_worker, second_connection, run_jobs
):
    worker = make_worker()
    worker.step()
    take(second_connection, "delete", article.pk)
    second_connection.execute(
        "INSERT INTO app_article (id, title, contents, author, published_time) "
        "VALUES (%s, 'new', '', '', now())",
        [article.pk],
    )
    second_connection.commit()

    worker.step(claim=False)
    assert embedded_text(article) is None
    run_jobs()

    assert embedded_text(article) == "new"


def test_rows_that_swap_their_keys_swap_their_vectors(second_connection, run_jobs, connect):
    first = Note.objects.create(body="first")
    second = Note.objects.create(body="second")
    run_jobs()

    middle = "00000000-0000-0000-0000-000000000001"
    for old, new in [(first.pk, middle), (second.pk, first.pk), (middle, second.pk)]:
        second_connection.execute("UPDATE app_note SET id = %s WHERE id = %s", [new, old])
    second_connection.commit()
    assert not NoteEmbedding.objects.exists()
    run_jobs()

    passages = dict(NoteEmbedding.objects.values_list("source_id", "passage"))
    assert passages == {first.pk: "second", second.pk: "first"}


@pytest.mark.parametrize(
    "gone", ["DELETE FROM app_articlecomment", "TRUNCATE app_articlecomment CASCADE"]
)
def test_staged_vectors_and_open_failures_go_with_the_row(make_worker, provider, settings, gone):
    settings.PGEMBED_BATCH_SIZE = 1
    comment = ArticleComment.objects.create(
        article=Article.objects.create(title="a"), text="one two three four five six seven eight"
    )
    Job.objects.exclude(spec="app.ArticleCommentEmbedding").delete()
    [held] = claim()
    jobs.fail(held, "no", using="default")
    comment.text += " nine"
    comment.save()
    worker = make_worker(concurrency=1)
    worker.step()
    worker.step(claim=False)
    assert StagedVector.objects.filter(source_pk=str(comment.pk)).exists()

    with connection.cursor() as cursor:
        cursor.execute(gone)

    assert not StagedVector.objects.exists()
    assert not Job.objects.filter(status="failed", settled_at=None).exists()
    assert not Job.objects.filter(status="running").exists()
    assert not ArticleCommentEmbedding.objects.exists()


@pytest.fixture
def partitioned():
    """``app_note`` by what was seen, in two partitions, with the triggers on the whole."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            ALTER TABLE app_note RENAME TO app_note_whole;
            CREATE TABLE app_note (LIKE app_note_whole INCLUDING DEFAULTS) PARTITION BY LIST (seen);
            CREATE TABLE app_note_unseen PARTITION OF app_note FOR VALUES IN (0);
            CREATE TABLE app_note_seen PARTITION OF app_note FOR VALUES IN (1);
            """
        )
        installed = [(m, t) for m, t in pgtrigger.registered() if m is Note]
        for model, trigger in installed:
            trigger.install(model)
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE app_note; ALTER TABLE app_note_whole RENAME TO app_note")
        cursor.execute("DROP TABLE IF EXISTS app_note_unseen")
        for model, trigger in installed:
            trigger.install(model)


@pytest.mark.usefixtures("partitioned")
class TestPartitions:
    def note(self, run_jobs: Callable[[], int]) -> Note:
        note = Note.objects.create(body="old")
        run_jobs()
        assert NoteEmbedding.objects.filter(source=note).exists()
        return note

    def test_a_row_that_moves_between_partitions_is_embedded_again(
        self, run_jobs, make_worker, second_connection
    ):
        note = self.note(run_jobs)
        Note.objects.filter(pk=note.pk).update(body="newer")
        worker = make_worker()
        worker.step()
        second_connection.execute("UPDATE app_note SET seen = 1, body = 'new'")
        second_connection.commit()

        worker.step(claim=False)
        run_jobs()

        [passage] = NoteEmbedding.objects.values_list("passage", flat=True)
        assert passage == "new"

    def test_truncating_the_whole_takes_the_vectors_along(self, run_jobs, second_connection):
        self.note(run_jobs)
        second_connection.execute("TRUNCATE app_note")
        second_connection.commit()

        assert not NoteEmbedding.objects.exists()

    @pytest.mark.parametrize(
        "statement",
        ["TRUNCATE app_note_unseen", "ALTER TABLE app_note DETACH PARTITION app_note_unseen"],
    )
    def test_what_is_done_to_one_partition_is_mended_by_the_reconciler(
        self, run_jobs, second_connection, statement
    ):
        """The limit that docs/guarantees.md names: no trigger of ours fires there."""
        self.note(run_jobs)
        second_connection.execute(statement)
        second_connection.commit()

        reconcile.reconcile_once(specs.get("app.NoteEmbedding"), using="default")
        run_jobs()

        assert not NoteEmbedding.objects.exists()

    def test_the_rows_of_a_partition_that_is_attached_are_found_by_the_reconciler(
        self, run_jobs, second_connection
    ):
        self.note(run_jobs)
        second_connection.execute(
            """
            CREATE TABLE attached (LIKE app_note INCLUDING DEFAULTS);
            INSERT INTO attached (id, body, seen) VALUES (gen_random_uuid(), 'attached', 2);
            ALTER TABLE app_note ATTACH PARTITION attached FOR VALUES IN (2)
            """
        )
        second_connection.commit()

        reconcile.reconcile_once(specs.get("app.NoteEmbedding"), using="default")
        run_jobs()
        Note.objects.update(body="changed")  # the triggers are on it, too
        run_jobs()

        assert set(NoteEmbedding.objects.values_list("passage", flat=True)) == {"changed"}
        assert NoteEmbedding.objects.count() == 2


def test_a_space_that_nobody_knew_when_the_row_went_is_clean_too(article, run_jobs):
    """Vectors go by their row, whatever their space."""
    run_jobs()
    [space] = spaces.live(specs.get("app.ArticleEmbedding"), using="default")
    row = ArticleEmbedding.objects.get(source=article)
    ArticleEmbedding.objects.filter(pk=row.pk).update(space_id=space.pk + 1000)

    article.delete()

    assert not ArticleEmbedding.objects.exists()


@pytest.mark.parametrize("key", ["a slug", "9" * 30, "0e37b1a5-9d0f-4ee7-bb5f-1ad2cf7d5b5e"])
def test_another_column_has_become_the_key_and_no_writer_hears_of_it(article, run_jobs, key):
    run_jobs()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pgembed_forget_v1('app.ArticleEmbedding', %s, 0, 'app_articleembedding')", [key]
        )
    assert embedded_text(article) is not None
