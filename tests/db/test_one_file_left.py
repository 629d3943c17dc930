"""A process that can open one more file: a connection takes two, and psycopg raises an OSError."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from pgembed_django import events
from pgembed_django.capture.walsender import Refused, Walsender
from pgembed_django.core import faults
from pgembed_django.models import Job
from pgembed_django.queue.listener import Listener
from pgembed_django.queue.maintenance import Chore, Chores
from tests.app.models import Note, NoteEmbedding

pytestmark = pytest.mark.django_db(transaction=True)

FILES = resource.getrlimit(resource.RLIMIT_NOFILE)


def take_files() -> None:
    """Leave one file to open, for a connection's socket, and none to wait for its answer with."""
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, FILES[1]))


def give_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, FILES)


def close_and_take_files() -> None:
    connection.close()
    take_files()


@pytest.fixture(autouse=True)
def all_files_again(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(faults, "FIRST_OUTAGE_SECONDS", 0.001)
    yield
    give_files()


@pytest.fixture
def when() -> Iterator[Callable[..., list[str]]]:
    """Do something when an event happens. Returns the errors it has told."""
    made = []

    def on(event: events.Event, do: Callable[[], None]) -> list[str]:
        errors: list[str] = []

        def listen(fields: dict[str, Any], **_: Any) -> None:
            errors.append(fields.get("error", ""))
            do()

        events.happened.connect(listen, sender=event, weak=False)
        made.append((listen, event))
        return errors

    yield on
    for listen, event in made:
        events.happened.disconnect(listen, sender=event)


def test_a_worker_whose_connection_cannot_be_opened_again_waits(when):
    note = Note.objects.create(body="a note")
    when(events.WORKER_STARTED, close_and_take_files)
    errors = when(events.DATABASE_LOST, give_files)

    call_command("embed_worker", drain=True, verbosity=0)

    assert "Too many open files" in errors[0]
    assert NoteEmbedding.objects.get(source=note).embedding is not None
    assert set(Job.objects.values_list("attempts", "crashes")) == {(0, 0)}


def test_what_its_thread_cannot_store_the_loop_stores(when, settings):
    settings.PGEMBED_BATCH_SIZE = 5
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(5))
    when(events.BATCH_EMBEDDED, take_files)
    errors = when(events.STORING_ALONE, give_files)

    call_command("embed_worker", drain=True, verbosity=0)

    assert "Too many open files" in errors[0]
    assert NoteEmbedding.objects.filter(embedding__isnull=False).count() == 5
    assert set(Job.objects.values_list("attempts", "crashes")) == {(0, 0)}


def test_a_listener_waits_for_its_turn(when):
    errors = when(events.LISTENER_FAILED, give_files)
    with closing(Listener(["app.NoteEmbedding"], using="default")) as listener:
        take_files()
        assert not listener.open()
        assert listener.open()

    assert "Too many open files" in errors[0]


def test_the_threads_of_chores_go_on(when):
    done = threading.Event()

    def look() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        done.set()
        return 0

    errors = when(events.CHORE_CUT_OFF, give_files)
    chores = Chores("look", [Chore(60.0, look)], using="default", wake=lambda: None)
    close_and_take_files()
    chores.start()
    try:
        assert done.wait(60)
        chores.check()
    finally:
        chores.stop()

    assert "Too many open files" in errors[0]


def test_the_log_is_not_read_for_now():
    take_files()
    with pytest.raises(Refused, match="Too many open files"):
        Walsender(using="default", is_stopping=lambda: False)
