"""Servers that are set up in other ways: standbys, little room for the log, and subscriptions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection, connections

from pgembed_django.capture import reading, slots
from tests import postgres
from tests.app.models import Note
from tests.captures import catch_up, is_compared, units, unread
from tests.conftest import wait_until
from tests.db.conftest import Writer

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]


def execute(statement: str, *parameters: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)


@contextmanager
def moved_to(folder: Path) -> Iterator[None]:
    """Use a copy of the server for the test's database."""
    settings = connections["default"].settings_dict
    with pytest.MonkeyPatch.context() as patched:
        connections["default"].close()
        for name, value in (("HOST", str(folder)), ("PORT", ""), ("OPTIONS", {})):
            patched.setitem(settings, name, value)
        yield
        connections["default"].close()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A copy of the server with the settings that the test is given, which the test uses."""
    if postgres.GIVEN:
        pytest.skip("DATABASE_URL names a server that is not ours to copy")
    with postgres.copied(**request.param) as folder, moved_to(folder):
        yield folder


def with_settings(**settings: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", [settings], indirect=True, ids=[""])


@with_settings(synchronous_standby_names="nobody", synchronous_commit="local")
@pytest.mark.parametrize("first", [0, 1], ids=["in order", "the later one first"])
def test_a_commit_that_waits_for_a_standby_is_enqueued_once_it_is_visible(
    server, capture, connect, monkeypatch, first
):
    spec = capture(Note, "wal")
    catch_up()
    observer = connect(autocommit=True)
    writers = [Writer(connect(autocommit=True), observer) for _ in range(2)]
    for writer in writers:
        writer.connection.execute("SET synchronous_commit = on")
        insert = "INSERT INTO app_note VALUES (gen_random_uuid(), 'not visible yet', 0)"
        writer.start(insert)
        wait_until(lambda writer=writer: waits_for_standby(observer, writer.pid))
    assert len(unread()) >= 6
    waiting = [writers[first], writers[1 - first]]
    seen: list[tuple[int, list[str]]] = []
    rest = reading.Reading._rest

    def release_one(self: reading.Reading, seconds: float) -> None:
        seen.append((Note.objects.count(), units(spec)))
        if waiting:
            writer = waiting.pop(0)
            observer.execute("SELECT pg_cancel_backend(%s)", [writer.pid])
            writer.end()
        rest(self, seconds)

    monkeypatch.setattr(reading.Reading, "_rest", release_one)

    catch_up()

    assert seen == [(0, []), (1, [])]
    assert len(units(spec)) == 2
    for writer in writers:
        writer.close()


def waits_for_standby(observer: psycopg.Connection, pid: int) -> bool:
    query = "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = %s"
    [waits] = observer.execute(query, [pid]).fetchone() or [False]
    return bool(waits)


@with_settings(max_slot_wal_keep_size="0", min_wal_size="32MB")
def test_a_slot_that_needed_too_much_of_the_log_is_made_anew_and_everything_is_compared(
    server, capture, caplog
):
    spec = capture(Note, "wal")
    catch_up()
    assert is_compared(spec)
    Note.objects.create(body="nobody reads this")
    for _ in range(3):
        execute("SELECT pg_switch_wal()")
        execute("CHECKPOINT")
    assert slots.look(using="default").is_lost

    catch_up()

    seen = slots.look(using="default")
    assert (seen.is_there, seen.is_lost) == (True, False)
    assert is_compared(spec)
    note = Note.objects.create(body="read again")
    catch_up()
    assert units(spec) == [str(note.pk)]


@with_settings(wal_level="replica")
def test_at_a_wal_level_of_replica_it_says_what_to_set_and_writers_go_on(server, capture, caplog):
    caplog.set_level(logging.ERROR)
    capture(Note, "wal")

    catch_up()

    [told] = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert "wal_level is 'replica'" in told
    assert "restart the server" in told
    Note.objects.create(body="undisturbed")
    Note.objects.update(body="undisturbed, too")
    Note.objects.all().delete()


@pytest.fixture
def source(connect: Callable[..., Any]) -> Iterator[psycopg.Connection]:
    """A connection to a copy of the server, whose notes the test's own database subscribes to."""
    if postgres.GIVEN:
        pytest.skip("DATABASE_URL names a server that is not ours to copy")
    info = connect().info
    with postgres.copied() as folder:
        address = f"host={folder} dbname={info.dbname} user={info.user}"
        with psycopg.connect(address, autocommit=True) as source:
            source.execute("CREATE PUBLICATION copied FOR TABLE app_note")
            execute(f"CREATE SUBSCRIPTION copied CONNECTION '{address}' PUBLICATION copied")
            try:
                yield source
            finally:
                execute("DROP SUBSCRIPTION copied")


@pytest.mark.parametrize(("how", "is_seen"), [("wal", True), ("message", False)])
def test_rows_that_a_subscription_brings_are_seen_in_the_log_and_not_by_triggers(
    capture, source, how, is_seen
):
    spec = capture(Note, how)
    catch_up()

    source.execute("INSERT INTO app_note VALUES (gen_random_uuid(), 'from elsewhere', 0)")
    wait_until(lambda: Note.objects.exists())
    catch_up()

    assert bool(units(spec)) == is_seen
