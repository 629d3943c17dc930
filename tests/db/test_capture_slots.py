"""One reads at a time, each change is enqueued once, and after a gap everything is compared."""

from __future__ import annotations

import dataclasses
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections

from pgembed_django.capture import Streamer, calls, reading, slots, streamer
from pgembed_django.capture.walsender import Refused, Walsender
from pgembed_django.declaration import specs
from pgembed_django.models import Job, ReplicationSlot
from pgembed_django.triggers import triggers
from tests.app.models import Article, Note
from tests.captures import catch_up, is_compared, units, unread, watch
from tests.conftest import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ABSENT = uuid.UUID(int=1)
END_READER = """
    SELECT pg_terminate_backend(active_pid)
    FROM pg_replication_slots
    WHERE slot_name = %s
"""


@pytest.fixture
def notes(capture: Any) -> Any:
    """The spec of notes, read and compared up to here."""
    spec = capture(Note, "wal")
    catch_up()
    assert is_compared(spec)
    return spec


def execute(statement: str, *parameters: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)


def slot() -> slots.Seen:
    return slots.look(using="default")


@pytest.fixture
def reader(notes: Any) -> Iterator[None]:
    """A worker that reads for as long as the test takes."""
    stopping = threading.Event()
    streamer = Streamer(using="default", is_stopping=stopping.is_set)

    def read() -> None:
        streamer.stream()
        connections["default"].close()

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: slot().is_active)
    yield
    stopping.set()
    thread.join(timeout=30)
    assert not thread.is_alive()


def in_a_thread(function: Callable[[], Any]) -> None:
    """Call a function with a connection of its own."""

    def call() -> None:
        try:
            function()
        finally:
            connections["default"].close()

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive()


# Once


def test_what_was_read_is_not_read_again(notes):
    Note.objects.create(body="once")
    catch_up()
    Job.objects.all().delete()

    catch_up()

    assert units(notes) == []
    assert not is_compared(notes)


def test_a_reader_that_is_killed_before_it_confirms_leaves_nothing_to_be_enqueued_twice(
    notes, monkeypatch
):
    Note.objects.create(body="once")

    def killed(*_: Any) -> None:
        raise Refused("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Walsender, "confirm", killed)
        catch_up()
    assert len(units(notes)) == 1
    assert unread()
    Job.objects.all().delete()

    catch_up()

    assert units(notes) == []
    assert unread() == []
    assert not is_compared(notes)


def test_a_reader_that_is_killed_before_it_commits_has_enqueued_nothing_and_noted_nothing(
    notes, monkeypatch
):
    note = Note.objects.create(body="once")
    before = ReplicationSlot.objects.get().position
    make = calls.make

    def killed(*args: Any, **options: Any) -> None:
        make(*args, **options)
        raise Refused("killed")

    with monkeypatch.context() as patched:
        patched.setattr(calls, "make", killed)
        catch_up()
    assert units(notes) == []
    assert ReplicationSlot.objects.get().position == before

    catch_up()

    assert units(notes) == [str(note.pk)]


def test_a_former_reader_that_was_only_frozen_writes_nothing_once_another_has_taken_over(
    notes, monkeypatch
):
    former, later = Streamer(using="default"), Streamer(using="default")
    Note.objects.create(body="once")
    advance = slots.advance
    taken_over: list[str] = []

    def take_over() -> None:
        execute(END_READER, slot().name)
        wait_until(lambda: not slot().is_active)
        later.catch_up()
        assert len(units(notes)) == 1
        Job.objects.all().delete()  # they are done

    def frozen(name: str, holder: str, **state: Any) -> bool:
        if not taken_over:
            taken_over.append(holder)
            in_a_thread(take_over)
        return advance(name, holder, **state)

    monkeypatch.setattr(slots, "advance", frozen)

    former.catch_up()

    assert taken_over
    assert units(notes) == []
    assert unread() == []


def test_while_one_reads_others_do_not(notes, reader):
    holder = ReplicationSlot.objects.get().holder

    assert Streamer(using="default").stream() == 0

    assert ReplicationSlot.objects.get().holder == holder
    note = Note.objects.create(body="read by the first")
    wait_until(lambda: units(notes) == [str(note.pk)])


def test_of_two_that_begin_at_once_one_makes_the_slot(capture, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    capture(Note, "wal")
    connect = Walsender.__init__
    others = [Streamer(using="default")]

    def beside_another(self: Walsender, **options: Any) -> None:
        connect(self, **options)
        if others:
            in_a_thread(others.pop().catch_up)

    monkeypatch.setattr(Walsender, "__init__", beside_another)

    catch_up()

    told = [one.getMessage() for one in caplog.records]
    assert len([one for one in told if one.startswith("Made the replication slot")]) == 1
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


# Gaps


def test_what_was_written_before_the_slot_was_made_is_compared(capture):
    spec = capture(Note, "wal")

    catch_up()

    assert slot().is_there
    assert is_compared(spec)


def test_a_lost_slot_is_made_anew_and_everything_is_compared(notes):
    Note.objects.create(body="nobody reads this")
    slots.drop(slot().name, using="default")

    catch_up()

    assert slot().is_there
    assert is_compared(notes)


def test_a_slot_that_others_have_moved_is_made_anew_and_everything_is_compared(notes):
    Note.objects.create(body="nobody reads this")
    execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", slot().name)

    catch_up()

    assert is_compared(notes)
    catch_up()
    assert not is_compared(notes)


def test_a_slot_whose_note_is_lost_is_made_anew_and_everything_is_compared(notes):
    ReplicationSlot.objects.all().delete()

    catch_up()

    assert is_compared(notes)


def test_a_spec_that_joins_is_compared_and_the_others_are_not(notes, capture):
    articles = capture(Article, "wal")

    catch_up()

    assert is_compared(articles)
    assert not is_compared(notes)


OUT_AND_IN = {
    "table": (
        "ALTER PUBLICATION pgembed DROP TABLE app_note",
        "ALTER PUBLICATION pgembed ADD TABLE app_note (id)",
    ),
    "publication": (
        "DROP PUBLICATION pgembed",
        "CREATE PUBLICATION pgembed FOR TABLE app_note (id)",
    ),
    "kinds of changes": (
        "ALTER PUBLICATION pgembed SET (publish = 'delete')",
        "ALTER PUBLICATION pgembed SET (publish = 'insert, update, delete, truncate')",
    ),
    "column of the key": (
        "ALTER TABLE app_note REPLICA IDENTITY NOTHING;"
        "ALTER PUBLICATION pgembed SET (publish = 'insert');"
        "ALTER PUBLICATION pgembed SET TABLE app_note (seen)",
        "ALTER PUBLICATION pgembed SET (publish = 'insert, update, delete, truncate');"
        "ALTER PUBLICATION pgembed SET TABLE app_note (id);"
        "ALTER TABLE app_note REPLICA IDENTITY DEFAULT",
    ),
}


@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "between two looks"])
@pytest.mark.parametrize("what", OUT_AND_IN)
def test_what_was_taken_out_of_the_publication_is_compared_when_it_is_put_back(
    notes, caplog, what, is_noticed
):
    taken_out, put_back = OUT_AND_IN[what]
    execute(taken_out)
    Note.objects.create(body="not published")
    if is_noticed:
        catch_up()
        assert not is_compared(notes)
    execute(put_back)

    catch_up()

    assert is_compared(notes)
    again = Note.objects.create(body="published")
    catch_up()
    assert str(again.pk) in units(notes)


@pytest.mark.parametrize("whose", ["all tables", "a schema"])
def test_a_publication_of_all_tables_will_do(notes, whose):
    kind = {"all tables": "ALL TABLES", "a schema": "TABLES IN SCHEMA public"}[whose]
    execute("DROP PUBLICATION pgembed")
    execute(f"CREATE PUBLICATION pgembed FOR {kind}")
    catch_up()
    assert is_compared(notes)

    note = Note.objects.create(body="published with the others")
    Note.objects.filter(pk=note.pk).update(id=ABSENT)
    catch_up()

    assert units(notes) == sorted([str(note.pk), str(ABSENT)])


def test_a_schema_that_was_taken_out_of_the_publication_is_compared_when_it_is_put_back(notes):
    execute("DROP PUBLICATION pgembed")
    execute("CREATE PUBLICATION pgembed FOR TABLES IN SCHEMA public")
    catch_up()
    assert is_compared(notes)
    execute("ALTER PUBLICATION pgembed DROP TABLES IN SCHEMA public")
    Note.objects.create(body="not published")
    execute("ALTER PUBLICATION pgembed ADD TABLES IN SCHEMA public")

    catch_up()

    assert is_compared(notes)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Let a reader look at once, and again and again, at what is published. Grows with each."""
    monkeypatch.setattr(reading, "SETTLE_SECONDS", 0.0)
    look, done = slots.published, []

    def counted(*args: Any, **options: Any) -> dict[str, str]:
        done.append(None)
        return look(*args, **options)

    monkeypatch.setattr(slots, "published", counted)
    return done


def test_rows_are_compared_once_all_that_wrote_before_the_table_was_published_have_ended(
    notes, looks, reader, connect
):
    execute("ALTER PUBLICATION pgembed DROP TABLE app_note")
    wait_until(lambda: ReplicationSlot.objects.get().specs == {notes.key: None})
    owner, writer = connect(), connect()
    owner.execute("ALTER PUBLICATION pgembed ADD TABLE app_note (id)")  # by hand, without a lock
    writer.execute("INSERT INTO app_note VALUES (%s, 'not published yet', 0)", [ABSENT])
    owner.commit()
    before = len(looks)
    wait_until(lambda: len(looks) > before + 1)
    assert not is_compared(notes)

    writer.commit()

    wait_until(lambda: ReplicationSlot.objects.get().specs[notes.key])
    assert is_compared(notes)


# Specs that triggers watch again


def switch_back() -> list[Any]:
    """Declare triggers for notes, and return those that a migration has yet to install."""
    [spec] = specs.of(Note)
    specs._registry[spec.key] = dataclasses.replace(spec, capture="trigger")
    return list(triggers(watch(spec)))


def test_what_triggers_watch_again_is_compared_once_they_are_installed(notes):
    Note.objects.create(body="only in the log")
    missing = switch_back()
    switched = Streamer(using="default")

    switched.compare_switched()
    assert not is_compared(notes)
    assert ReplicationSlot.objects.get().specs.keys() == {notes.key}

    for one in missing:
        one.install(Note)
    switched.compare_switched()
    assert is_compared(notes)
    assert ReplicationSlot.objects.get().specs == {}
    switched.compare_switched()
    assert not is_compared(notes)


def test_who_reads_for_others_compares_what_triggers_watch_again(notes, capture):
    capture(Article, "wal")
    catch_up()
    Note.objects.create(body="only in the log")
    for one in switch_back():
        one.install(Note)

    catch_up()

    assert is_compared(notes)
    assert notes.key not in ReplicationSlot.objects.get().specs


def make_anew() -> None:
    """Make the slot anew, as a reader does that has not come to compare anything yet."""
    name = slot().name
    slots.drop(name, using="default")
    slots.take(name, "another", using="default")
    with Walsender(using="default", is_stopping=lambda: False) as sender:
        made = sender.create(name)
    slots.begin_anew(name, "another", using="default", position=made)


def test_a_slot_that_is_made_anew_meanwhile_leaves_its_gaps_noted(notes, capture, monkeypatch):
    articles = capture(Article, "wal")
    catch_up()
    assert is_compared(articles)
    for one in switch_back():
        one.install(Note)
    look = streamer.switched_back
    done: list[None] = []

    def made_anew(noted: Any, *, using: str) -> list[str]:
        found = look(noted, using=using)
        if not done:
            done.append(None)
            make_anew()
        return found

    monkeypatch.setattr(streamer, "switched_back", made_anew)

    Streamer(using="default").compare_switched()
    catch_up()

    assert is_compared(articles)


# Which tables may be published


@pytest.mark.parametrize("identity", ["FULL", "NOTHING"])
def test_a_table_whose_updates_would_fail_is_refused_before_it_is_published(capture, identity):
    execute(f"ALTER TABLE app_note REPLICA IDENTITY {identity}")
    try:
        with pytest.raises(DatabaseError, match='replica identity of "app_note"') as raised:
            capture(Note, "wal")
        assert "REPLICA IDENTITY DEFAULT" in str(raised.value)

        with connection.cursor() as cursor:
            cursor.execute("SELECT FROM pg_publication_rel WHERE prrelid = 'app_note'::regclass")
            assert cursor.fetchall() == []
        Note.objects.create(body="undisturbed")
        Note.objects.update(body="undisturbed, too")
        Note.objects.all().delete()
    finally:
        execute("ALTER TABLE app_note REPLICA IDENTITY DEFAULT")


def test_a_row_may_be_identified_by_an_index_that_has_its_key(capture):
    execute("CREATE UNIQUE INDEX seen_id ON app_note (seen, id)")
    execute("ALTER TABLE app_note REPLICA IDENTITY USING INDEX seen_id")
    try:
        spec = capture(Note, "wal")
        catch_up()
        note = Note.objects.create(body="text", seen=3)
        Note.objects.update(seen=4)
        Note.objects.update(id=ABSENT)
        catch_up()

        assert units(spec) == sorted([str(note.pk), str(ABSENT)])
    finally:
        execute("ALTER TABLE app_note REPLICA IDENTITY DEFAULT")
        execute("DROP INDEX seen_id")


# What keeps it from reading


def refused(caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.set_level(logging.ERROR)
    catch_up()
    return [one.getMessage() for one in caplog.records if "cannot be read" in one.getMessage()]


def test_a_slot_of_that_name_that_something_else_uses_is_left_alone(capture, caplog):
    spec = capture(Note, "wal")
    name = slot().name
    execute("SELECT pg_create_physical_replication_slot(%s)", name)

    [told] = refused(caplog)

    assert name in told
    assert "used by something else" in told
    Note.objects.create(body="undisturbed")
    assert not Job.objects.filter(spec=spec.key).exists()


def test_without_a_publication_it_says_what_makes_one(notes, caplog):
    execute("DROP PUBLICATION pgembed")

    [told] = refused(caplog)

    assert "no publication 'pgembed'" in told
    assert "manage.py migrate" in told
    Note.objects.create(body="undisturbed")
