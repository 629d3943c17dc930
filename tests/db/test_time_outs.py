"""A role's statement_timeout holds for workers too: what takes too long is done in fewer rows."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.db.models import BooleanField, Q
from django.db.models.expressions import RawSQL

from pgembed_django import database, specs
from pgembed_django.maintenance import reconcile
from pgembed_django.maintenance.chores import Chore, Chores
from pgembed_django.models import Job, Lap
from pgembed_django.pipeline import Pipeline, slices
from tests.app.models import Note, NoteEmbedding, Product, ProductEmbedding

pytestmark = pytest.mark.django_db(transaction=True)

SLOWLY_STORED = """
    CREATE FUNCTION take_long() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.passage = 'slow' THEN
            PERFORM pg_sleep(60);
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER take_long BEFORE INSERT ON app_noteembedding
    FOR EACH ROW EXECUTE FUNCTION take_long()
"""
SLOWLY_READ = "CASE WHEN body = 'slow' THEN pg_sleep(60) IS NOT NULL ELSE true END"


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def notes() -> list[Note]:
    return [Note.objects.create(body=body) for body in ("one", "two", "slow", "three", "four")]


@pytest.fixture
def work(make_worker: Callable[..., Pipeline]) -> Iterator[Callable[[Pipeline], None]]:
    """Let a worker do all that it can, with a short time-out."""

    def work(worker: Pipeline) -> None:
        run("SET statement_timeout = '200ms'")
        while until_not_canceled(worker.step):
            pass

    yield work
    run("RESET statement_timeout")


def until_not_canceled(step: Callable[[], Any]) -> Any:
    """Do it again, as a worker does, where it was canceled: in fewer rows."""
    for _ in range(20):
        try:
            return step()
        except DatabaseError as error:
            if not database.is_canceled(error):
                raise
    raise AssertionError("It is canceled each time.")


def assert_that_the_slow_one_failed_alone(notes: list[Note]) -> None:
    stored = NoteEmbedding.objects.exclude(embedding=None).values_list("passage", flat=True)
    assert set(stored) == {"one", "two", "three", "four"}
    assert Job.objects.filter(status=Job.Status.SUCCEEDED).count() == 4
    failure = Job.objects.get(status=Job.Status.FAILED)
    assert failure.source_pk == str(notes[2].pk)
    assert "statement timeout" in failure.last_error


def test_a_row_that_cannot_be_stored_in_time_fails_alone(notes, make_worker, work):
    run(SLOWLY_STORED)
    try:
        work(make_worker(max_attempts=1))
    finally:
        run("DROP FUNCTION take_long() CASCADE")

    assert_that_the_slow_one_failed_alone(notes)


def test_a_row_that_cannot_be_read_in_time_fails_alone(notes, make_worker, work):
    worker = make_worker(max_attempts=1)
    [spec] = specs.of(Note)
    slow = dataclasses.replace(spec, when=Q(RawSQL(SLOWLY_READ, [], BooleanField())))
    worker.claiming.specs = {spec.key: slow}

    work(worker)

    assert_that_the_slow_one_failed_alone(notes)


def test_many_rows_are_stored_in_several_transactions(
    notes: Any, make_worker: Callable[..., Pipeline], work: Any, monkeypatch: pytest.MonkeyPatch
):
    """Who deletes one of them waits for the end of its transaction."""
    monkeypatch.setattr(slices, "FIRST", 2)
    monkeypatch.setattr(slices, "SECONDS", 3600.0)

    work(make_worker())

    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM app_noteembedding GROUP BY xmin::text ORDER BY 1")
        assert cursor.fetchall() == [(2,), (3,)]


@pytest.mark.usefixtures("work")
def test_a_row_that_cannot_be_read_in_time_does_not_end_the_reconcilers_lap(
    notes, run_jobs, monkeypatch
):
    monkeypatch.setattr(reconcile, "_fewer_rows", {})
    run_jobs()
    Job.objects.all().delete()
    NoteEmbedding.objects.filter(source_id=notes[4].pk).update(text_digest=b"another")
    [spec] = specs.of(Note)
    slow = dataclasses.replace(spec, when=Q(RawSQL(SLOWLY_READ, [], BooleanField())))
    run("SET statement_timeout = '200ms'")

    until_not_canceled(
        lambda: reconcile.reconcile_once(slow, using="default", sweeps=[Lap.Sweep.STALE])
    )

    assert Job.objects.get().source_pk == str(notes[4].pk)
    assert Lap.objects.get(spec=spec.key, sweep=Lap.Sweep.STALE).cursor is None  # at its end


def test_a_chore_that_is_canceled_is_told_and_keeps_no_other_from_its_turn(caplog):
    done = threading.Event()

    def take_long() -> int:
        run("SET statement_timeout = '100ms'")
        run("SELECT pg_sleep(60)")
        return 0

    def do() -> int:
        done.set()
        return 0

    chores = Chores(
        "both", [Chore(60.0, take_long), Chore(60.0, do)], using="default", wake=lambda: None
    )
    with caplog.at_level(logging.WARNING, logger="pgembed_django"):
        chores.start()
        assert done.wait(10)
        chores.stop()
        chores.join()

    chores.check()
    assert "Maintenance (take_long), later again: canceling statement" in caplog.text


def test_a_query_that_fails_in_a_text_method_does_not_end_the_sweep(run_jobs, monkeypatch):
    good, bad = Product.objects.create(title="good"), Product.objects.create(title="bad")
    run_jobs()
    Job.objects.all().delete()
    ProductEmbedding.objects.update(text_digest=b"another")

    def pitch(row: Product) -> str:
        if row.pk == bad.pk:
            run("SELECT 1 / 0")
        return row.title

    monkeypatch.setattr(Product, "pitch", pitch)
    spec = specs.get("app.ProductEmbedding")

    reconcile.reconcile_once(spec, using="default", sweeps=[Lap.Sweep.STALE])

    assert Job.objects.get().source_pk == str(good.pk)
