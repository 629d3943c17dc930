"""Changes from the write-ahead log: read, enqueued and confirmed, without a trigger's job."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import pytest
from django.db import connection, transaction

from pgembed_django.capture import batches, slots
from pgembed_django.capture.pgoutput import Emitted
from pgembed_django.models import Job
from pgembed_django.spaces import reconcile
from pgembed_django.triggers import triggers
from tests.app.models import Article, ArticleEmbedding, Note, NoteEmbedding, Page, PageEmbedding
from tests.captures import catch_up, units, unread, watch

pytestmark = pytest.mark.django_db(transaction=True)

LOCKED = """
    SELECT count(*)
    FROM pg_locks
    WHERE pid = pg_backend_pid()
      AND relation = 'pgembed_job'::regclass
"""
ABSENT = uuid.UUID(int=1)


@pytest.fixture(params=["wal", "message"])
def how(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def notes(capture: Any, how: str) -> Any:
    """The spec of notes, read up to here."""
    spec = capture(Note, how)
    catch_up()
    return spec


@pytest.fixture
def articles(capture: Any, how: str) -> Any:
    """The spec of articles, which watches two fields and has a condition, read up to here."""
    spec = capture(Article, how)
    catch_up()
    return spec


@pytest.fixture
def embed(make_worker: Any) -> Any:
    """Do the jobs, and nothing else that a worker does."""

    def work() -> None:
        worker = make_worker()
        while worker.step():
            pass

    return work


@pytest.fixture
def note(notes: Any, embed: Any) -> Note:
    """One that is embedded."""
    made = Note.objects.create(body="old text")
    catch_up()
    embed()
    assert passages(made.pk) == ["old text"]
    return made


def passages(pk: Any) -> list[str]:
    embedded = NoteEmbedding.objects.filter(source_id=pk, embedding__isnull=False)
    return list(embedded.values_list("passage", flat=True))


def execute(statement: str, *parameters: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)


def emitted() -> list[tuple[str, list[str]]]:
    """Return what messages say that are not read yet."""
    return [(one.verb, list(one.keys)) for one in unread() if isinstance(one, Emitted)]


# What is written


def test_what_is_written_is_enqueued(notes):
    made = [Note.objects.create(body=f"body {number}") for number in range(3)]
    assert units(notes) == []

    catch_up()

    assert units(notes) == sorted(str(note.pk) for note in made)


def test_an_updated_row_is_embedded_anew(note, embed):
    Note.objects.update(body="new text")
    catch_up()
    embed()

    assert passages(note.pk) == ["new text"]


def test_of_a_deleted_row_no_vectors_are_left_once_that_was_read(note, notes):
    Note.objects.all().delete()
    catch_up()

    assert passages(note.pk) == []


def test_a_row_that_gets_another_key_leaves_no_vectors_under_the_former_one(note, notes, embed):
    Note.objects.filter(pk=note.pk).update(id=ABSENT)
    catch_up()

    assert passages(note.pk) == []
    embed()
    assert passages(ABSENT) == ["old text"]
    assert units(notes) == []


def test_of_a_truncated_table_no_vectors_are_left(note, notes):
    execute("TRUNCATE app_note CASCADE")
    catch_up()

    assert passages(note.pk) == []
    assert units(notes) == []


def test_a_table_that_was_filled_again_keeps_what_is_still_right(note, notes, run_jobs):
    gone = Note.objects.create(body="gone")
    catch_up()
    run_jobs()
    with transaction.atomic():
        execute("TRUNCATE app_note CASCADE")
        Note.objects.create(pk=note.pk, body=note.body)
    catch_up()

    assert passages(note.pk) == ["old text"]
    assert units(notes) == [str(note.pk)]
    reconcile.reconcile_once(notes, using="default", scans=["orphaned"])
    assert units(notes) == sorted([str(note.pk), str(gone.pk)])


def test_vectors_of_a_row_that_is_there_again_are_kept(note, notes):
    Note.objects.filter(pk=note.pk)._raw_delete("default")
    Note.objects.create(pk=note.pk, body=note.body)
    catch_up()

    assert passages(note.pk) == ["old text"]
    assert units(notes) == [str(note.pk)]


def test_rows_that_are_copied_into_a_table_are_enqueued(notes):
    with connection.cursor() as cursor, cursor.copy("COPY app_note FROM STDIN") as copy:
        copy.write(f"{ABSENT}\tcopied\t0\n".encode())
    catch_up()

    assert units(notes) == [str(ABSENT)]


def test_what_is_rolled_back_is_not_read(notes):
    with transaction.atomic():
        Note.objects.create(body="rolled back")
        transaction.set_rollback(True)
    catch_up()

    assert units(notes) == []


def test_of_savepoints_those_that_are_released_are_read(notes):
    with transaction.atomic():
        with transaction.atomic():
            kept = Note.objects.create(body="kept")
        with transaction.atomic():
            Note.objects.create(body="rolled back")
            transaction.set_rollback(True)
        with transaction.atomic(), transaction.atomic():
            nested = Note.objects.create(body="kept, too")
    catch_up()

    assert units(notes) == sorted([str(kept.pk), str(nested.pk)])


def test_a_prepared_transaction_is_read_once_it_is_committed(notes, connect):
    other = connect(autocommit=True)
    if other.execute("SHOW max_prepared_transactions").fetchone() == ("0",):
        pytest.skip("the server has no room for prepared transactions")
    other.execute("BEGIN")
    other.execute("INSERT INTO app_note VALUES (%s, 'prepared', 0)", [ABSENT])
    other.execute("PREPARE TRANSACTION 'held'")
    try:
        later = Note.objects.create(body="committed before")
        catch_up()
        assert units(notes) == [str(later.pk)]
    except BaseException:
        other.execute("ROLLBACK PREPARED 'held'")
        raise
    other.execute("COMMIT PREPARED 'held'")

    catch_up()

    assert units(notes) == sorted([str(later.pk), str(ABSENT)])


def test_a_key_that_is_stored_apart_and_unchanged_is_not_taken_for_gone(capture, embed):
    spec = capture(Page, "wal")
    execute("ALTER TABLE app_page ALTER slug SET STORAGE EXTERNAL, ALTER body SET STORAGE PLAIN")
    catch_up()
    page = Page.objects.create(slug="\N{OWL}" * 50, body="a" * 2500)
    catch_up()
    embed()
    assert PageEmbedding.objects.filter(source=page).exists()

    Page.objects.update(body="b" * 2500)
    catch_up()

    assert PageEmbedding.objects.filter(source=page).exists()
    assert units(spec) == [page.slug]
    execute("ALTER TABLE app_page ALTER slug SET STORAGE EXTENDED, ALTER body SET STORAGE EXTENDED")


def test_a_large_text_that_is_unchanged_is_embedded_anew_under_another_key(notes, embed):
    text = " ".join(f"word{number}" for number in range(20_000))
    note = Note.objects.create(body=text)
    catch_up()
    embed()

    Note.objects.filter(pk=note.pk).update(id=ABSENT)
    catch_up()
    embed()

    assert passages(note.pk) == []
    assert len(passages(ABSENT)) > 10


def test_a_large_transaction_is_enqueued_in_several_and_noted_as_one(notes, monkeypatch):
    monkeypatch.setattr(batches, "MOST_KEYS", 10)
    noted: list[Any] = []
    advance = slots.advance

    def observed(*args: Any, **state: Any) -> bool:
        noted.append(state["position"])
        return advance(*args, **state)

    monkeypatch.setattr(slots, "advance", observed)
    Note.objects.bulk_create(Note(body=f"body {number}") for number in range(35))

    catch_up()

    assert len(units(notes)) == 35
    assert noted[:4].count(None) == 3
    assert noted[3] is not None


# What a writer pays


def test_a_writer_neither_writes_nor_locks_a_job(notes):
    with transaction.atomic(), connection.cursor() as cursor:
        note = Note.objects.create(body="first")
        Note.objects.update(body="second")
        note.delete()
        execute("TRUNCATE app_note CASCADE")

        cursor.execute(LOCKED)
        assert cursor.fetchone() == (0,)
    assert not Job.objects.exists()


@pytest.mark.parametrize("how", ["message"])
def test_a_column_that_is_not_watched_leaves_no_message(articles, make_article):
    make_article()
    catch_up()

    Article.objects.update(author="Ada")

    assert emitted() == []


@pytest.mark.parametrize("how", ["message"])
def test_rows_that_do_not_match_leave_no_message(articles, make_article):
    draft = make_article(published_time=None)
    Article.objects.update(title="A better one")
    draft.delete()

    assert emitted() == []


@pytest.mark.parametrize("how", ["message"])
def test_a_row_is_enqueued_when_it_begins_to_match_and_forgotten_when_it_leaves(
    articles, make_article
):
    article = make_article(published_time=None)
    key = str(article.pk)

    Article.objects.update(published_time="2026-01-01T00:00:00Z")
    assert emitted() == [("enqueue", [key])]
    Article.objects.update(published_time=None)

    assert emitted() == [("enqueue", [key]), ("forget", [key])]


@pytest.mark.parametrize("how", ["message"])
def test_rows_that_one_statement_inserts_leave_one_message(notes):
    by_statement = dataclasses.replace(watch(notes), is_by_message=True, is_by_statement=True)
    inserted = next(iter(triggers(by_statement)))
    inserted.uninstall(Note)
    inserted.install(Note)

    execute("INSERT INTO app_note SELECT gen_random_uuid(), 'x', 0 FROM generate_series(1, 1000)")

    [(verb, keys)] = emitted()
    assert (verb, len(set(keys))) == ("enqueue", 1000)
    catch_up()
    assert len(units(notes)) == 1000


# A worker that is embedding the row at that moment


def test_a_worker_that_is_embedding_a_deleted_row_does_not_bring_it_back(notes, make_worker, embed):
    note = Note.objects.create(body="doomed")
    catch_up()
    worker = make_worker()
    worker.step()  # claims, reads and embeds

    note.delete()
    catch_up()
    worker.step()  # would store

    assert passages(note.pk) == []
    embed()
    assert passages(note.pk) == []
    assert units(notes) == []


@pytest.mark.parametrize("first", ["read", "stored"])
def test_a_row_that_leaves_its_condition_ends_without_vectors(
    articles, make_article, make_worker, embed, first
):
    article = make_article()
    catch_up()
    worker = make_worker()
    worker.step()

    Article.objects.update(published_time=None)
    if first == "read":
        catch_up()
    while worker.step():
        pass
    catch_up()
    embed()

    assert not ArticleEmbedding.objects.filter(source=article).exists()
    assert units(articles) == []


# Messages that others have written


@pytest.mark.parametrize(
    "content",
    [
        "not ours",
        '["enqueue", "app.NoteEmbedding", 0, "app_noteembedding", ["\\ud800"]]',
        '["forget", "app.NoteEmbedding", 0, "app_noteembedding", ["no key"]]',
        '["forget", "app.NoteEmbedding", 0, "auth_user", ["1"]]',
        '["forget_all", "app.NoteEmbedding", 0, "nowhere.at_all", []]',
        '["enqueue", "nobody.Embedding", 100, "", ["%s"]]' % ("x" * 9000),
    ],
)
@pytest.mark.parametrize("is_transactional", [True, False])
def test_a_message_of_others_keeps_no_change_from_being_read(notes, content, is_transactional):
    emit = "SELECT pg_logical_emit_message(%s, %s, %s::text)"
    execute(emit, is_transactional, "pgembed", content)
    note = Note.objects.create(body="behind it")
    execute(emit, is_transactional, "x" * 5000, content)

    catch_up()

    assert str(note.pk) in units(notes)
    assert unread() == []
