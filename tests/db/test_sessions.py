"""A connection is cut where the server owes it no answer, and left alone wherever it does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, connections, transaction

from pgembed_django.queue.sessions import Sessions
from tests import postgres
from tests.conftest import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    one = Sessions(using="default")
    yield one
    one.end()


@pytest.fixture
def watched(sessions) -> Iterator[Sessions]:
    """This thread's own connection is watched."""
    connection.ensure_connection()
    sessions.watch()
    yield sessions
    connection.close()


STATE = "SELECT state, wait_event FROM pg_stat_activity WHERE pid = %s"
ACTIVE_FOR_US = ("active", "ClientRead")


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def cut(sessions: Sessions, *, seconds: float = 0, thread: int | None = None) -> int:
    return sessions.cut_silent(thread or threading.get_ident(), seconds=seconds)


def test_what_is_idle_on_the_server_is_cut(watched, caplog):
    assert cut(watched) == 1

    with pytest.raises(OperationalError):
        run("SELECT 1")
    [record] = caplog.records
    assert (record.event, record.count) == ("pgembed.connections_cut", 1)


def test_what_is_gone_from_the_server_is_cut(watched, second_connection):
    pid = connection.connection.info.backend_pid
    second_connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    assert cut(watched, seconds=60) == 1


def test_what_lost_its_way_in_the_middle_of_a_pipeline_is_cut(watched, second_connection):
    """The server calls a session active until the end of the pipeline, which never comes."""
    pid = connection.connection.info.backend_pid
    second_connection.autocommit = True  # what a transaction has seen of a session stays as it was
    looks = (second_connection.execute(STATE, [pid]).fetchone() for _ in range(100_000))
    with suppress(psycopg.Error), connection.connection.pipeline():
        connection.connection.execute("SELECT 1")
        # Not with wait_until, which would send more into the pipeline.
        next(look for look in looks if look == ACTIVE_FOR_US)
        found = cut(watched)

    assert found == 1


def test_what_the_server_has_just_answered_is_left_alone(watched):
    assert cut(watched, seconds=60) == 0

    run("SELECT 1")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
@pytest.mark.parametrize("use_tz", [True, False])
def test_so_it_is_whatever_time_zone_the_server_has(sessions, settings, monkeypatch, zone, use_tz):
    options = {**connection.settings_dict["OPTIONS"], "options": f"-c TimeZone={zone}"}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    settings.USE_TZ = use_tz
    connection.close()
    connection.ensure_connection()
    sessions.watch()

    assert cut(sessions, seconds=60) == 0

    run("SELECT 1")
    connection.close()


def test_what_another_thread_waits_for_is_no_reason_to_cut_this_one(watched):
    assert cut(watched, thread=-1) == 0

    run("SELECT 1")


def test_who_waits_for_a_lock_is_left_alone(sessions, second_connection):
    second_connection.execute("LOCK app_note")
    pids: list[int] = []

    def wait() -> None:
        try:
            connection.ensure_connection()
            sessions.watch()
            pids.append(connection.connection.info.backend_pid)
            with transaction.atomic():
                run("LOCK app_note")
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:
        ident = thread.submit(threading.get_ident).result()
        waiting = thread.submit(wait)
        wait_until(lambda: pids and is_waiting(pids[0]))
        found = cut(sessions, thread=ident)
        second_connection.rollback()
        waiting.result(timeout=30)

    assert found == 0


def is_waiting(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid])
        return cursor.fetchone() == (True,)


def test_sessions_that_are_watched_no_longer_are_not_cut(watched):
    watched.end()
    connection.close()
    run("SELECT 1")

    assert cut(watched) == 0


# Whoever should have ended by now


@pytest.fixture
def lonely() -> Iterator[str]:
    """An alias of a server whose synchronous standby is away, until the test ends."""
    if postgres.GIVEN:
        pytest.skip("DATABASE_URL names a server that is not ours to copy")
    with postgres.copied() as folder:
        connections["lonely"] = connection.copy("lonely")
        connections["lonely"].settings_dict |= {"HOST": str(folder), "OPTIONS": {}}
        yield "lonely"
        connections["lonely"].close()
        del connections["lonely"]


@pytest.mark.live
def test_it_does_not_wait_for_a_standby_that_is_away(lonely):
    sessions = Sessions(using=lonely)
    looking = connections[lonely]
    looking.ensure_connection()

    def ask(statement: str) -> Any:
        with looking.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone() if cursor.description else None

    def commit() -> None:
        connections[lonely] = looking.copy()  # each thread has its own
        try:
            sessions.watch()
            with connections[lonely].cursor() as cursor:
                cursor.execute("CREATE TABLE committed ()")
        finally:
            connections[lonely].close()

    with ThreadPoolExecutor(1) as thread:
        ask("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        ask("SELECT pg_reload_conf()")
        wait_until(lambda: ask("SHOW synchronous_standby_names") == ("nobody",))
        waiting = thread.submit(commit)
        try:
            wait_until(lambda: ask("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
            assert sessions.cancel_waiting(seconds=0) == 1
            waiting.result(timeout=10)
        finally:
            ask("ALTER SYSTEM RESET synchronous_standby_names")
            ask("SELECT pg_reload_conf()")

    assert ask("SELECT to_regclass('committed')") == ("committed",)
    sessions.end()
