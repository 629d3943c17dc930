"""A role's statement_timeout holds for workers too: what takes too long is done in fewer rows."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Queue
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, connections
from django.db.models import BooleanField, Q
from django.db.models.expressions import RawSQL

from pgembed_django import sources, spaces
from pgembed_django.core import adapting, faults
from pgembed_django.core.faults import Fault
from pgembed_django.declaration import specs
from pgembed_django.models import Job, ScanCursor, Space
from pgembed_django.queue import maintenance as chores_module
from pgembed_django.queue.maintenance import Chore, Chores, attempt
from pgembed_django.queue.work import Work
from pgembed_django.spaces import indexes, reconcile
from tests.app.models import Note, NoteEmbedding, Product, ProductEmbedding
from tests.conftest import wait_until
from tests.db.conftest import backend_pid

pytestmark = pytest.mark.django_db(transaction=True)

# What a statement_timeout says. A real one would cancel others too where the machine is busy.
TIME_OUT = """
    CREATE FUNCTION time_out() RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        RAISE 'canceling statement due to statement timeout' USING ERRCODE = 'query_canceled';
    END $$
"""
SLOWLY_STORED = """
    CREATE FUNCTION take_long() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.passage = 'slow' THEN
            PERFORM time_out();
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER take_long BEFORE INSERT ON app_noteembedding
    FOR EACH ROW EXECUTE FUNCTION take_long()
"""
SLOWLY_READ = "CASE WHEN body = 'slow' THEN time_out() ELSE true END"


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def notes() -> list[Note]:
    return [Note.objects.create(body=body) for body in ("one", "two", "slow", "three", "four")]


@pytest.fixture
def time_out() -> Iterator[None]:
    run(TIME_OUT)
    yield
    run("DROP FUNCTION time_out()")


def skip_where_unknown(time_out: str) -> None:
    """Leave out what only a later server can do."""
    if time_out == "transaction_timeout" and connection.pg_version < 170000:
        pytest.skip("PostgreSQL has transaction_timeout since 17")


def work(worker: Work) -> None:
    """Let a worker do all that it can."""
    while until_not_canceled(worker.step):
        pass


def until_not_canceled(step: Callable[[], Any]) -> Any:
    """Do it again, as a worker does, where it was canceled: in fewer rows."""
    for _ in range(20):
        try:
            return step()
        except DatabaseError as error:
            if faults.of(error) is not Fault.TOO_SLOW:
                raise
    raise AssertionError("It is canceled each time.")


def assert_that_the_slow_one_failed_alone(notes: list[Note]) -> None:
    stored = NoteEmbedding.objects.exclude(embedding=None).values_list("passage", flat=True)
    assert set(stored) == {"one", "two", "three", "four"}
    assert Job.objects.filter(status=Job.Status.SUCCEEDED).count() == 4
    failure = Job.objects.get(status=Job.Status.FAILED)
    assert failure.source_pk == str(notes[2].pk)
    assert "statement timeout" in failure.last_error


def test_a_row_that_cannot_be_stored_in_time_fails_alone(notes, make_worker, time_out):
    run(SLOWLY_STORED)
    try:
        work(make_worker(max_attempts=1))
    finally:
        run("DROP FUNCTION take_long() CASCADE")

    assert_that_the_slow_one_failed_alone(notes)


def test_texts_that_cannot_be_stored_early_in_time_cost_few_time_outs(
    make_worker: Callable[..., Work], provider: Any, time_out: None
):
    """So many rows at once, not each of them."""
    provider.is_down = True
    for number in range(8):
        Note.objects.create(body=f"slow {number}")
    worker = make_worker()
    worker.claim()
    worker.handler.planner.step()
    run(SLOWLY_STORED.replace("= 'slow'", "LIKE 'slow%'"))
    try:
        with pytest.raises(DatabaseError) as raised:
            worker.handler.writer.store_text(list(worker.handler.units.by_id.values()))
        assert faults.of(raised.value) is Fault.TOO_SLOW
        assert len(worker.handler.units.by_id) == 8  # none of them was tried alone
        for _ in range(2):  # of four, of two
            with pytest.raises(DatabaseError):
                worker.handler.writer.store_text(list(worker.handler.units.by_id.values()))
        # Of one: the rest is left alone for a while.
        worker.handler.writer.store_text(list(worker.handler.units.by_id.values()))
    finally:
        run("DROP FUNCTION take_long() CASCADE")

    assert len(worker.handler.units.by_id) == 8
    assert worker.handler.wait_seconds > 0


def test_a_row_whose_statement_is_canceled_once_is_not_charged(make_worker, provider):
    run("CREATE SEQUENCE tries")
    run(
        "CREATE FUNCTION first_canceled() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN "
        "IF nextval('tries') = 1 THEN RAISE 'by a person' USING ERRCODE = 'query_canceled'; "
        "END IF; RETURN true; END $$"
    )
    Note.objects.create(body="one")
    worker = make_worker()
    [spec] = specs.of(Note)
    when = Q(RawSQL("first_canceled()", [], BooleanField()))
    worker.handler.worked_on = {spec.key: dataclasses.replace(spec, when=when)}
    try:
        while worker.step():
            pass
    finally:
        run("DROP FUNCTION first_canceled()")
        run("DROP SEQUENCE tries")

    assert Job.objects.values_list("status", "attempts").get() == ("succeeded", 0)


def test_a_row_that_cannot_be_read_in_time_fails_alone(notes, make_worker, time_out):
    worker = make_worker(max_attempts=1)
    [spec] = specs.of(Note)
    slow = dataclasses.replace(spec, when=Q(RawSQL(SLOWLY_READ, [], BooleanField())))
    worker.handler.worked_on = {spec.key: slow}

    work(worker)

    assert_that_the_slow_one_failed_alone(notes)


def test_a_long_row_that_cannot_be_read_in_time_costs_one_time_out(
    make_worker, time_out, monkeypatch
):
    """It was to be read alone: the others that wait are none of its company."""
    monkeypatch.setattr(sources, "READ_BYTES", 1000)
    for body in ("slow " * 1000, "one", "two", "three", "four"):
        Note.objects.create(body=body)
    worker = make_worker(max_attempts=1)
    [spec] = specs.of(Note)
    slowly_read = RawSQL(SLOWLY_READ.replace("= 'slow'", "LIKE 'slow%%'"), [], BooleanField())
    worker.handler.worked_on = {spec.key: dataclasses.replace(spec, when=Q(slowly_read))}

    worker.step()
    worker.step()
    assert Job.objects.filter(status=Job.Status.FAILED).count() == 1
    while worker.step():
        pass
    assert Job.objects.filter(status=Job.Status.SUCCEEDED).count() == 4


def test_many_rows_are_stored_in_several_transactions(
    notes: Any, make_worker: Callable[..., Work], monkeypatch: pytest.MonkeyPatch
):
    """Who deletes one of them waits for the end of its transaction."""
    monkeypatch.setattr(adapting, "FIRST", 2)
    monkeypatch.setattr(adapting, "STEP_SECONDS", 3600.0)

    work(make_worker())

    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM app_noteembedding GROUP BY xmin::text ORDER BY 1")
        assert cursor.fetchall() == [(2,), (3,)]


def test_a_table_that_stays_locked_beyond_the_roles_lock_timeout_ends_no_worker(
    notes, make_worker, connect
):
    worker = make_worker()
    run("SET lock_timeout = '50ms'")
    other = connect()
    other.execute("LOCK TABLE pgembed_job IN ACCESS EXCLUSIVE MODE")

    with pytest.raises(DatabaseError) as raised:
        worker.step()

    assert faults.of(raised.value) is Fault.TOO_SLOW  # so it is tried again in a while
    other.rollback()
    while worker.step():
        pass
    assert worker.completed == len(notes)
    run("RESET lock_timeout")


@pytest.fixture
def stale(notes, run_jobs, monkeypatch) -> Note:
    """The one note whose text is not what is stored of it."""
    monkeypatch.setattr(reconcile, "_fewer_rows", {})
    run_jobs()
    Job.objects.all().delete()
    NoteEmbedding.objects.filter(source_id=notes[4].pk).update(text_digest=b"another")
    one: Note = notes[4]
    return one


@pytest.mark.usefixtures("time_out")
def test_a_row_that_cannot_be_read_in_time_does_not_end_the_reconcilers_scan(stale):
    [spec] = specs.of(Note)
    slow = dataclasses.replace(spec, when=Q(RawSQL(SLOWLY_READ, [], BooleanField())))

    until_not_canceled(
        lambda: reconcile.reconcile_once(slow, using="default", scans=[ScanCursor.Scan.STALE])
    )

    assert Job.objects.get().source_pk == str(stale.pk)
    assert (
        ScanCursor.objects.get(spec=spec.key, scan=ScanCursor.Scan.STALE).cursor is None
    )  # at its end


def test_a_value_that_the_server_cannot_read_ends_neither_scan_nor_worker(notes, stale):
    [spec] = specs.of(Note)
    damaged = RawSQL("1 / CASE WHEN id = %s THEN 0 ELSE 1 END = 1", [notes[2].pk], BooleanField())
    broken = dataclasses.replace(spec, when=Q(damaged))
    scans: list[int] = []

    def scan() -> int:
        scans.append(
            reconcile.reconcile_once(broken, using="default", scans=[ScanCursor.Scan.STALE])
        )
        return scans[-1]

    tries = 0
    while not scans:
        attempt(scan)
        tries += 1
        assert tries < 30

    assert Job.objects.get().source_pk == str(stale.pk)
    assert ScanCursor.objects.get(spec=spec.key, scan=ScanCursor.Scan.STALE).cursor is None


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

    chores.check()
    assert "(take_long) was given up, trying again later: canceling statement" in caplog.text


def test_a_chore_that_does_not_start_at_once_waits_for_its_turn():
    turns: list[str] = []
    done = threading.Event()

    def wait() -> int:
        turns.append("too early")
        return 0

    def do() -> int:
        done.set()
        return 0

    chores = Chores(
        "both",
        [Chore(60.0, wait, starts_at_once=False), Chore(60.0, do)],
        using="default",
        wake=lambda: None,
    )
    chores.start()
    assert done.wait(10)
    chores.stop()

    chores.check()
    assert not turns


def test_a_chore_that_awaits_the_other_workers_has_no_turn_just_after_an_outage(monkeypatch):
    """They have yet to renew their leases."""
    monkeypatch.setattr(chores_module, "RENEW_SECONDS", 3600.0)
    rounds = threading.Semaphore(0)
    turns: list[str] = []

    def lose_the_connection_once() -> int:
        rounds.release()
        if turns == ["reap"]:
            turns.append("outage")
            connections["default"].ensure_connection()
            connections["default"].connection.close()
            run("SELECT 1")
        return 0

    def reap() -> int:
        turns.append("reap")
        return 0

    chores = Chores(
        "both",
        [Chore(60.0, reap, awaits_others=True), Chore(0.001, lose_the_connection_once)],
        using="default",
        wake=lambda: None,
    )
    chores.start()
    for _ in range(3):
        assert rounds.acquire(timeout=10)
    chores.stop()

    chores.check()
    [reaping, _] = chores._chores
    assert turns == ["reap", "outage"]
    assert reaping.due_at > time.monotonic() + 3000


def test_a_chore_that_takes_longer_than_a_transaction_may_ends_no_worker(caplog):
    """An index build, say. It ends the session, too."""
    skip_where_unknown("transaction_timeout")
    rounds = threading.Semaphore(0)

    def take_long() -> int:
        rounds.release()
        run("SET transaction_timeout = '10ms'")
        run("SELECT pg_sleep(60)")
        return 0

    chores = Chores("slow", [Chore(0.001, take_long)], using="default", wake=lambda: None)
    chores.start()
    for _ in range(2):
        assert rounds.acquire(timeout=10)
    chores.stop()

    chores.check()
    assert "Maintenance (take_long) was given up, trying again later" in caplog.text


def test_a_query_that_fails_in_a_text_method_does_not_end_the_scan(run_jobs, monkeypatch):
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

    reconcile.reconcile_once(spec, using="default", scans=[ScanCursor.Scan.STALE])

    assert Job.objects.get().source_pk == str(good.pk)


@pytest.fixture
def build(notes, settings, connect) -> Iterator[Callable[[str], tuple[Future[int], int]]]:
    """Build an index in a thread, after a statement of its session. Returns the backend, too.

    An open transaction that has written to the table keeps the build from its end.
    """
    settings.PGEMBED_INDEX_ROWS = 1
    [spec] = specs.of(Note)
    [space] = spaces.ensure(spec, using="default")
    for note in notes:
        store_one(note, space)
    open_writer = connect()
    open_writer.execute("DELETE FROM app_note WHERE body = 'one'")
    pids: Queue[int] = Queue()

    def build(statement: str) -> int:
        try:
            run(statement)
            pids.put(backend_pid())
            return indexes.build(spec, space, using="default")
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:

        def start(statement: str) -> tuple[Future[int], int]:
            building = thread.submit(build, statement)
            return building, pids.get(timeout=10)

        start.end_the_writer = open_writer.rollback  # type: ignore[attr-defined]
        yield start
        open_writer.rollback()


def store_one(note: Note, space: Space) -> None:
    NoteEmbedding.objects.create(
        source=note,
        space=space,
        position=0,
        start_offset=0,
        end_offset=3,
        passage=note.body,
        chunk_digest=b"",
        text_digest=b"",
        embedding=[1.0] * space.dimensions,
        was_cut=False,
    )


def waits_since(pid: int, milliseconds: int) -> bool:
    """Tell whether a backend waits for a lock, in a transaction of that age."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock' "
            "AND clock_timestamp() - xact_start > %s * interval '1 ms'",
            [pid, milliseconds],
        )
        return cursor.fetchone() is not None


@pytest.mark.parametrize("name", ["statement_timeout", "lock_timeout", "transaction_timeout"])
def test_an_index_takes_as_long_to_build_as_it_takes(build, name):
    skip_where_unknown(name)
    building, pid = build(f"SET {name} = '100ms'")

    wait_until(lambda: building.done() or waits_since(pid, 200))
    build.end_the_writer()

    assert building.result(timeout=30) == 2


def test_a_transaction_that_takes_too_long_is_a_lost_connection():
    skip_where_unknown("transaction_timeout")
    run("SET transaction_timeout = '50ms'")

    with pytest.raises(DatabaseError) as caught:
        run("SELECT pg_sleep(60)")

    assert faults.is_lost_connection(caught.value)
    connection.close()


def test_what_ends_a_build_is_told_as_it_was(build):
    building, pid = build("SELECT 1")
    wait_until(lambda: waits_since(pid, 0))

    run(f"SELECT pg_terminate_backend({pid})")

    with pytest.raises(OperationalError, match="terminating connection"):
        building.result(timeout=30)


def test_a_chore_that_loses_its_connection_is_told(caplog):
    done = threading.Event()

    def once() -> int:
        if not caplog.records:
            run("SELECT pg_terminate_backend(pg_backend_pid())")
        done.set()
        return 0

    chores = Chores("one", [Chore(60.0, once)], using="default", wake=lambda: None)
    with caplog.at_level(logging.WARNING, logger="pgembed_django"):
        chores.start()
        assert done.wait(10)
        chores.stop()

    chores.check()
    [record] = caplog.records
    assert (record.event, record.chore) == ("pgembed.chore_cut_off", "once")
    assert "terminating connection" in record.error
