"""I9: no wake is lost. No timer makes up for it: they are an hour apart."""

from __future__ import annotations

import signal
from datetime import datetime

import psycopg
import pytest
from django.db import connection

from pgembed_django.models import Worker
from pgembed_django.queue import jobs
from tests.app.models import Note, NoteEmbedding
from tests.conftest import wait_until
from tests.live.conftest import is_asleep, providers

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]


def test_a_transaction_that_outlives_the_last_look_is_embedded_at_its_commit(
    start_drowsy_worker, second_connection
):
    # Nobody is on watch, so this writer does not notify.
    note = add_note(second_connection, "open")
    start_drowsy_worker()
    wait_until_it_looks_seldom()

    second_connection.commit()

    wait_until(lambda: is_embedded(note))


def test_a_job_that_another_transaction_holds_is_embedded_when_that_ends(
    start_drowsy_worker, second_connection
):
    first = Note.objects.create(body="first")
    lock = "SELECT FROM pgembed_job WHERE status = 'pending' FOR UPDATE"
    second_connection.execute(lock)  # and no trigger, so no notification at its end
    start_drowsy_worker()
    wait_until(Worker.objects.exists)
    wait_until_it_looks_seldom()

    second_connection.commit()

    wait_until(lambda: is_embedded(first.pk))


def test_a_second_writer_that_holds_the_announced_job_is_embedded_at_its_commit(
    start_drowsy_worker, second_connection
):
    note = Note.objects.create(body="first")
    second_connection.execute("UPDATE app_note SET body = 'second' WHERE id = %s", [note.pk])
    start_drowsy_worker()
    wait_until_it_looks_seldom()

    second_connection.commit()

    wait_until(lambda: is_embedded(note.pk, "second"))


def test_the_worker_beside_one_on_watch_takes_over_when_that_one_dies(start_drowsy_worker):
    first = start_drowsy_worker()
    wait_until(is_asleep)
    backends = listening()
    start_drowsy_worker()
    wait_until(lambda: has_looked(besides=backends))

    first.send_signal(signal.SIGKILL)
    first.wait()
    wait_until(lambda: not set(backends) & set(listening()))
    note = Note.objects.create(body="nobody notifies")

    wait_until(lambda: is_embedded(note.pk))


def test_a_worker_that_sleeps_is_called_to_jobs_that_nobody_announced(start_drowsy_worker, server):
    settings = {
        "PGEMBED_PROVIDERS": providers(server),
        "PGEMBED_BATCH_SIZE": 2,
        "PGEMBED_CONCURRENCY": 1,
    }
    start_drowsy_worker(**settings)
    wait_until(is_asleep)
    backends = listening()
    start_drowsy_worker(**settings)
    wait_until(lambda: has_looked(besides=backends))
    wait_until(one_is_fast_asleep)
    server.gate.clear()

    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        notes = Note.objects.bulk_create(Note(body=f"note {number}") for number in range(30))
        cursor.execute("RESET session_replication_role")
    units = [str(note.pk) for note in notes]
    jobs.enqueue("app.NoteEmbedding", units, kind="reconciler", priority=0, using="default")

    wait_until(lambda: len(server.times) == 2)


def add_note(connection: psycopg.Connection, body: str) -> object:
    statement = "INSERT INTO app_note (id, body, seen) VALUES (gen_random_uuid(), %s, 0)"
    return connection.execute(f"{statement} RETURNING id", [body]).fetchone()[0]


def wait_until_it_looks_seldom() -> None:
    """Until the worker is past its first looks, one right after the other."""
    seen: dict[int, datetime] = {}

    def is_a_while_after_the_last() -> bool:
        gaps = []
        for pid, at in rows(
            "SELECT pid, query_start FROM pg_stat_activity WHERE datname = current_database() "
            "AND query LIKE '%%pg_try_advisory_lock_shared%%' AND pid <> pg_backend_pid()"
        ):
            gaps.append(at - seen.setdefault(pid, at))
            seen[pid] = at
        return any(gap.total_seconds() > 0.15 for gap in gaps)

    wait_until(is_a_while_after_the_last)


def listening() -> list[int]:
    found = rows(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND query LIKE '%%pg_try_advisory_lock%%' AND pid <> pg_backend_pid()"
    )
    return [pid for [pid] in found]


def one_is_fast_asleep() -> bool:
    """Whether a worker has been on watch for longer than one beside it waits."""
    [[asleep]] = rows(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND query LIKE '%%pg_try_advisory_lock%%' AND pid <> pg_backend_pid() "
        "AND clock_timestamp() - state_change > interval '700 ms'"
    )
    return asleep > 0


def has_looked(*, besides: list[int]) -> bool:
    return bool(set(listening()) - set(besides))


def rows(statement: str) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(statement, [])
        return cursor.fetchall()


def is_embedded(pk: object, body: str | None = None) -> bool:
    stored = NoteEmbedding.objects.filter(source_id=pk, embedding__isnull=False)
    if body:
        stored = stored.filter(passage=body)
    return stored.exists()
