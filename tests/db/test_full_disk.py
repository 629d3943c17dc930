"""A database that takes nothing for a while (full, read-only) is waited for, and nobody's fault."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.models import BooleanField, Q
from django.db.models.expressions import RawSQL

from pgembed_django import events
from pgembed_django.core import faults
from pgembed_django.declaration import specs
from pgembed_django.embedding import writer
from pgembed_django.models import Attempt, Job, StagedVector
from pgembed_django.queue import jobs
from pgembed_django.queue.maintenance import Chore, Chores
from pgembed_django.queue.work import Work
from tests.app.models import (
    Article,
    ArticleComment,
    Note,
    NoteEmbedding,
    Product,
    ProductEmbedding,
)
from tests.db.conftest import expire_leases, reap

pytestmark = pytest.mark.django_db(transaction=True)

Full = Callable[..., AbstractContextManager[None]]

DISK_FULL = """
    CREATE OR REPLACE FUNCTION disk_full() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE 'could not extend file "base/1/2": No space left on device' USING ERRCODE = '53100';
    END $$;
"""
WORDS = ("badger", "buffalo", "condor", "dingo", "ferret")

OUT_OF_MEMORY = """
    CREATE FUNCTION out_of_memory() RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        RAISE 'out of memory' USING ERRCODE = '53200';
    END $$;
"""


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def full(transactional_db: None) -> Full:
    """No room for certain rows, until the context ends."""

    @contextmanager
    def full(table: str, *, on: str = "INSERT", when: str = "true") -> Iterator[None]:
        run(DISK_FULL)
        run(
            f"CREATE TRIGGER disk_full BEFORE {on} ON {table} FOR EACH ROW WHEN ({when}) "
            "EXECUTE FUNCTION disk_full()"
        )
        try:
            yield
        finally:
            run("DROP FUNCTION IF EXISTS disk_full() CASCADE")

    return full


@pytest.fixture
def notes() -> list[Note]:
    return [Note.objects.create(body=f"note {number}") for number in range(5)]


def assert_that_it_waits(step: Callable[[], object]) -> None:
    """It is the database's fault, so it is for the worker's loop."""
    with pytest.raises(DatabaseError) as raised:
        step()
    assert faults.is_of_the_server(raised.value)
    # Nor is it told otherwise the next time.
    with pytest.raises(DatabaseError) as raised:
        step()
    assert faults.is_of_the_server(raised.value)


def assert_that_nobody_is_charged() -> None:
    assert set(Job.objects.values_list("attempts", "crashes", "outages")) == {(0, 0, 0)}
    assert set(Job.objects.values_list("last_error", flat=True)) == {""}


def finish(worker: Work) -> None:
    for _ in range(20):
        if not worker.step() and worker.held.is_empty:
            return
    raise AssertionError("It does not come to an end.")


def test_rows_that_the_disk_has_no_room_for_are_held_and_stored_later(notes, make_worker, full):
    worker = make_worker(max_attempts=1)
    worker.step()

    with full("app_noteembedding"):
        assert_that_it_waits(lambda: worker.step(claim=False))
        assert len(worker.handler.units.by_id) == len(notes)
        assert_that_nobody_is_charged()

    finish(worker)
    assert NoteEmbedding.objects.exclude(embedding=None).count() == len(notes)
    assert_that_nobody_is_charged()


def test_a_worker_that_is_stopped_meanwhile_gives_its_rows_back(notes, make_worker, full):
    worker = make_worker()
    worker.step()

    with full("app_noteembedding"):
        worker.release()

    assert set(Job.objects.values_list("status", flat=True)) == {"pending"}
    assert_that_nobody_is_charged()


def test_texts_that_there_is_no_room_for_are_held(notes, provider, make_worker, full):
    worker = make_worker(max_attempts=1)
    provider.is_down = True
    worker.step()

    with full("app_noteembedding"):
        assert_that_it_waits(worker.step)
        assert_that_nobody_is_charged()
        assert set(Job.objects.values_list("status", flat=True)) == {"running"}

    worker.step()
    assert NoteEmbedding.objects.count() == len(notes)  # the text, before the vectors


def test_vectors_of_unfinished_rows_that_there_is_no_room_for_are_kept(
    provider, settings, make_worker, full
):
    settings.PGEMBED_BATCH_SIZE = 1
    article = Article.objects.create(title="not embedded")
    text = "\n\n".join(f"The {word} sleeps." for word in WORDS)
    ArticleComment.objects.create(article=article, text=text)
    worker = make_worker(max_attempts=1, concurrency=1)
    worker.step()

    with full("pgembed_staging"):
        assert_that_it_waits(worker.step)
        assert_that_nobody_is_charged()

    worker.step()
    assert StagedVector.objects.exists()


def test_jobs_that_cannot_be_given_back_for_lack_of_room_are_held(
    notes, provider, make_worker, full
):
    worker = make_worker(max_attempts=1)
    provider.is_down = True

    worker.step()
    with full("pgembed_job", on="UPDATE", when="NEW.status = 'pending'"):
        assert_that_it_waits(worker.step)
        assert not worker.held.is_empty

    finish(worker)
    assert set(Job.objects.values_list("status", "attempts", "crashes")) == {("pending", 0, 0)}


def test_rows_that_there_is_no_memory_to_read_are_held(notes, make_worker):
    worker = make_worker(max_attempts=1)
    [spec] = specs.of(Note)
    condition = Q(RawSQL("out_of_memory()", [], BooleanField()))
    worker.handler.worked_on = {spec.key: dataclasses.replace(spec, when=condition)}
    run(OUT_OF_MEMORY)
    try:
        assert_that_it_waits(worker.step)
    finally:
        run("DROP FUNCTION out_of_memory()")

    assert_that_nobody_is_charged()
    assert set(Job.objects.values_list("status", flat=True)) == {"running"}


def test_a_text_method_whose_query_finds_no_memory_charges_no_row(make_worker, monkeypatch):
    Product.objects.create(title="one")
    worker = make_worker(max_attempts=1)
    run(OUT_OF_MEMORY)

    def pitch(row: Product) -> str:
        run("SELECT out_of_memory()")
        return row.title

    with monkeypatch.context() as patch:
        patch.setattr(Product, "pitch", pitch)
        try:
            assert_that_it_waits(worker.step)
        finally:
            run("DROP FUNCTION out_of_memory()")

    finish(worker)
    assert ProductEmbedding.objects.exclude(embedding=None).exists()
    assert_that_nobody_is_charged()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Work until all is done. The fault is over when the worker has told of it so often."""
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(faults, "FIRST_OUTAGE_SECONDS", 0.001)

    def work(times: int, mend: Callable[[], None]) -> list[dict[str, Any]]:
        def listen(fields: dict[str, Any], **_: Any) -> None:
            heard.append(fields | {"jobs": states()})
            if len(heard) == times:
                mend()

        events.happened.connect(listen, sender=events.DATABASE_REFUSES, weak=False)
        try:
            call_command("embed_worker", "--drain", verbosity=0)
        finally:
            events.happened.disconnect(listen, sender=events.DATABASE_REFUSES)
        return heard

    return work


def states() -> set[tuple[Any, ...]]:
    with connection.cursor() as cursor:  # the worker's own, which is sound
        cursor.execute("SELECT status, count(*) FROM pgembed_job GROUP BY status")
        return set(cursor.fetchall())


def test_an_outage_longer_than_the_lease_is_no_crash(notes, told, full, connect):
    outside = connect(autocommit=True)

    def mend() -> None:
        outside.execute("DROP FUNCTION disk_full() CASCADE")
        expire_leases()
        assert set(reap()) == {"requeued"}  # another worker was there first

    with full("app_noteembedding"):
        told(3, mend)

    assert NoteEmbedding.objects.exclude(embedding=None).count() == len(notes)
    assert_that_nobody_is_charged()
    assert not Attempt.objects.exists()


@pytest.fixture
def lost(notes: list[Note], make_worker: Callable[..., Work]) -> Work:
    """A worker whose jobs were reaped meanwhile."""
    worker = make_worker()
    worker.step()
    expire_leases()
    reap()
    return worker


def crashes() -> set[int]:
    return set(Job.objects.values_list("crashes", flat=True))


def test_its_crash_is_taken_back_though_another_worker_is_at_the_row(lost):
    assert claim_suspect()

    lost.held.heartbeat(after_outage=True)

    assert crashes() == {0}


def test_the_crash_of_another_worker_is_not(lost, notes):
    for _ in notes:
        claim_suspect()
    expire_leases()
    reap()

    for _ in range(2):
        lost.held.heartbeat(after_outage=True)

    assert crashes() == {1}
    assert Attempt.objects.count() == len(notes)


def test_nor_is_one_without_an_outage(lost):
    """The worker was frozen, and a text may have been the reason."""
    lost.held.heartbeat()

    assert crashes() == {1}


def test_an_open_writer_is_not_waited_for(lost, notes, connect):
    writer = connect()
    writer.execute("SELECT FROM pgembed_job WHERE source_pk = %s FOR UPDATE", [str(notes[0].pk)])

    lost.held.heartbeat(after_outage=True)

    assert Job.objects.filter(crashes=0).count() == len(notes) - 1


def claim_suspect() -> list[jobs.Claim]:
    lease = jobs.Lease(99, 600)
    return jobs.claim_suspect(["app.NoteEmbedding"], lease=lease, using="default")


@pytest.mark.parametrize("rows", [5, 300], ids=["in the loop", "by the storing thread"])
def test_a_worker_sits_a_full_disk_out_claims_nothing_and_goes_on(told, full, connect, rows):
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(rows))
    outside = connect(autocommit=True)
    with full("app_noteembedding"):
        heard = told(5, lambda: outside.execute("DROP FUNCTION disk_full() CASCADE"))

    assert NoteEmbedding.objects.exclude(embedding=None).count() == rows
    assert_that_nobody_is_charged()
    waits = [fields["seconds"] for fields in heard]
    assert waits == [waits[0] * 2**number for number in range(5)]
    assert {fields["error"] for fields in heard} == {
        'could not extend file "base/1/2": No space left on device'
    }
    # Once it knows, it claims no more.
    assert all(one["jobs"] == other["jobs"] for one, other in itertools.pairwise(heard[1:]))


def test_what_is_whole_after_an_outage_is_stored_before_more_is_claimed(
    told, full, connect, monkeypatch
):
    """Its other thread has met none yet: a text that was stored early has."""
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(300))
    monkeypatch.setattr(writer, "LATE_SECONDS", 0.0)

    def no_more_early_texts(**_: Any) -> None:
        monkeypatch.setattr(writer, "LATE_SECONDS", 60.0)

    events.happened.connect(no_more_early_texts, sender=events.DATABASE_REFUSES, weak=False)
    outside = connect(autocommit=True)
    try:
        with full("app_noteembedding"):
            heard = told(5, lambda: outside.execute("DROP FUNCTION disk_full() CASCADE"))
    finally:
        events.happened.disconnect(no_more_early_texts, sender=events.DATABASE_REFUSES)

    waits = [fields["seconds"] for fields in heard]
    assert waits == [waits[0] * 2**number for number in range(5)]


def test_a_worker_that_cannot_claim_for_lack_of_room_sits_it_out(notes, told, full, connect):
    outside = connect(autocommit=True)
    with full("pgembed_job", on="UPDATE", when="NEW.status = 'running'"):
        heard = told(4, lambda: outside.execute("DROP FUNCTION disk_full() CASCADE"))

    assert NoteEmbedding.objects.exclude(embedding=None).count() == len(notes)
    waits = [fields["seconds"] for fields in heard]
    assert waits == [waits[0] * 2**number for number in range(4)]


def test_a_chore_that_finds_no_room_comes_later_again_and_keeps_no_other_from_its_turn(caplog):
    tried, done = threading.Semaphore(0), threading.Event()

    def find_no_room() -> int:
        tried.release()
        run("DO $$ BEGIN RAISE 'No space left on device' USING ERRCODE = '53100'; END $$")
        return 0

    def do() -> int:
        done.set()
        return 0

    chores = Chores(
        "both", [Chore(0.001, find_no_room), Chore(60.0, do)], using="default", wake=lambda: None
    )
    with caplog.at_level(logging.WARNING, logger="pgembed_django"):
        chores.start()
        assert done.wait(10)
        for _ in range(3):
            assert tried.acquire(timeout=10)
        chores.stop()

    chores.check()
    # Once, until it is over.
    assert caplog.text.count("(find_no_room) was given up, trying again later: No space") == 1
