"""Managed servers are read-only while they are nearly full, and others during a fail-over."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection

from pgembed_django import events
from pgembed_django.core import faults
from pgembed_django.models import Job
from tests.app.models import Note, NoteEmbedding
from tests.conftest import wait_until
from tests.live.conftest import wait_for_log

pytestmark = pytest.mark.django_db(transaction=True)


class Switch:
    """Makes the database read-only, and writable again, for every session that begins."""

    def __init__(self, outside: psycopg.Connection) -> None:
        self._outside = outside
        self._name = connection.settings_dict["NAME"]

    def on(self) -> None:
        self._outside.execute(f"ALTER DATABASE {self._name} SET default_transaction_read_only = on")
        self._outside.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.close()

    def off(self) -> None:
        self._outside.execute(f"ALTER DATABASE {self._name} RESET default_transaction_read_only")


@pytest.fixture
def read_only(connect: Callable[..., psycopg.Connection]) -> Iterator[Switch]:
    switch = Switch(connect(autocommit=True))
    yield switch
    switch.off()
    connection.close()


@pytest.fixture
def on_refusal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[str]]]:
    """Do something when a worker has told so often that the database refuses."""
    monkeypatch.setattr(faults, "FIRST_OUTAGE_SECONDS", 0.001)
    listeners = []

    def do(what: Callable[[], None], *, times: int) -> list[str]:
        heard: list[str] = []

        def listen(fields: dict[str, Any], **_: Any) -> None:
            heard.append(fields["error"])
            if len(heard) == times:
                what()

        listeners.append(listen)
        events.happened.connect(listen, sender=events.DATABASE_REFUSES, weak=False)
        return heard

    yield do
    for listen in listeners:
        events.happened.disconnect(listen, sender=events.DATABASE_REFUSES)


@pytest.mark.live
def test_a_worker_sits_it_out_and_goes_on_where_it_was(start_worker, read_only, connect):
    worker = start_worker(PGEMBED_RECONCILE_SECONDS=0)
    Note.objects.create(body="before")
    wait_until(lambda: embedded() == 1)

    read_only.on()
    writer = connect(autocommit=True)
    writer.execute("SET default_transaction_read_only = off")
    writer.execute("INSERT INTO app_note (id, body, seen) VALUES (gen_random_uuid(), 'x', 0)")
    wait_for_log(worker, "read-only transaction")
    read_only.off()
    connection.close()

    wait_until(lambda: embedded() == 2)
    assert worker.poll() is None
    assert set(Job.objects.values_list("attempts", "crashes")) == {(0, 0)}


def test_a_worker_that_is_started_meanwhile_waits(read_only, on_refusal):
    Note.objects.create(body="note")
    read_only.on()
    heard = on_refusal(read_only.off, times=3)

    call_command("embed_worker", "--drain", verbosity=0)

    assert embedded() == 1
    assert len(heard) == 3
    assert "read-only transaction" in heard[0]


def test_one_that_waits_to_start_can_be_stopped(read_only, on_refusal):
    read_only.on()
    heard = on_refusal(lambda: os.kill(os.getpid(), signal.SIGTERM), times=2)

    call_command("embed_worker", "--drain", verbosity=0)

    assert len(heard) == 2


def embedded() -> int:
    return NoteEmbedding.objects.filter(embedding__isnull=False).count()
