"""Writes that a gap in the write-ahead log would have lost, although all rows are compared."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from pgembed_django import spaces
from pgembed_django.capture import slots
from pgembed_django.models import Job
from pgembed_django.spaces import reconcile
from tests.app.models import Note, NoteEmbedding
from tests.captures import catch_up, is_compared, units

pytestmark = pytest.mark.django_db(transaction=True)

ADD_JOB = "INSERT INTO pgembed_job (spec, source_pk) SELECT %s, unnest(%s::text[])"


@pytest.fixture(params=["wal", "message"])
def how(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def notes(capture: Any, how: str) -> Any:
    """The spec of notes, read and compared up to here."""
    spec = capture(Note, how)
    spaces.ensure(spec, using="default")
    catch_up()
    assert is_compared(spec)
    return spec


def finish(worker: Any) -> None:
    """Let a worker store what it is at, and do all other jobs."""
    while worker.step():
        pass


def passages(pk: Any) -> list[str]:
    embedded = NoteEmbedding.objects.filter(source_id=pk, embedding__isnull=False)
    return list(embedded.values_list("passage", flat=True))


def execute(statement: str, *parameters: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)


def lose_the_slot() -> None:
    slots.drop(slots.look(using="default").name, using="default")


def scan(spec: Any) -> None:
    """Go on with the scans that are under way, as workers do without the reconciler."""
    under_way = reconcile.under_way([spec], using="default", only_begun=True)
    reconcile.reconcile_once(spec, using="default", scans=under_way.get(spec, []))


# What workers were at


def test_a_row_that_was_written_in_a_gap_while_a_worker_was_at_it_ends_with_its_last_text(
    notes, make_worker
):
    note = Note.objects.create(body="old text")
    catch_up()
    worker = make_worker()
    worker.step()  # claims, reads and embeds
    lose_the_slot()
    Note.objects.update(body="new text")

    catch_up()
    scan(notes)
    finish(worker)

    assert passages(note.pk) == ["new text"]


def test_a_row_whose_text_was_restored_in_a_gap_ends_with_it(notes, make_worker):
    note = Note.objects.create(body="first text")
    catch_up()
    finish(make_worker())
    Note.objects.update(body="second text")
    catch_up()
    worker = make_worker()
    worker.step()
    lose_the_slot()
    Note.objects.update(body="first text")

    catch_up()
    scan(notes)
    finish(worker)

    assert passages(note.pk) == ["first text"]


def test_a_row_that_was_deleted_in_a_gap_while_a_worker_was_at_it_ends_without_vectors(
    notes, make_worker
):
    note = Note.objects.create(body="doomed")
    catch_up()
    worker = make_worker()
    worker.step()
    lose_the_slot()
    Note.objects.all().delete()

    catch_up()
    scan(notes)
    finish(worker)

    assert passages(note.pk) == []


def test_of_a_table_that_was_filled_again_a_worker_does_not_bring_a_former_row_back(
    notes, make_worker
):
    doomed = Note.objects.create(body="doomed")
    catch_up()
    worker = make_worker()
    worker.step()
    execute("TRUNCATE app_note CASCADE")
    Note.objects.create(body="another")

    catch_up()
    scan(notes)
    finish(worker)

    assert passages(doomed.pk) == []


# What has failed, or is locked


def test_a_failure_whose_row_was_rewritten_in_a_gap_is_tried_again(provider, notes, make_worker):
    note = Note.objects.create(body="poison")
    catch_up()
    finish(make_worker())
    [failure] = Job.objects.filter(status="failed", settled_at=None)
    lose_the_slot()
    Note.objects.update(body="sound")

    catch_up()
    scan(notes)
    finish(make_worker())

    failure.refresh_from_db()
    assert failure.settled_at is not None
    assert passages(note.pk) == ["sound"]


def test_a_scan_after_a_gap_comes_back_to_a_unit_whose_job_was_locked(
    notes, make_worker, second_connection
):
    note = Note.objects.create(body="old text")
    catch_up()
    finish(make_worker())
    lose_the_slot()
    Note.objects.update(body="new text")
    catch_up()
    second_connection.execute(ADD_JOB, [notes.key, [str(note.pk)]])
    scan(notes)
    second_connection.rollback()

    scan(notes)
    finish(make_worker())

    assert passages(note.pk) == ["new text"]


def test_a_scan_after_a_gap_comes_back_to_units_beside_many_that_were_locked(
    notes, make_worker, second_connection
):
    made = Note.objects.bulk_create(Note(body=f"old text {number}") for number in range(150))
    catch_up()
    finish(make_worker())
    lose_the_slot()
    for note in made:
        note.body = note.body.replace("old", "new")
    Note.objects.bulk_update(made, ["body"])
    catch_up()
    second_connection.execute(ADD_JOB, [notes.key, [str(note.pk) for note in made[:50]]])
    scan(notes)
    second_connection.commit()

    scan(notes)

    assert units(notes) == sorted(str(note.pk) for note in made)
