"""Stop: nothing leased, no attempt spent, in time."""

from __future__ import annotations

import os
import signal
import socket

import pytest
from django.db import connection

from pgembed_django.models import Job, Worker
from tests.app.models import Note, NoteEmbedding
from tests.conftest import wait_until
from tests.live.conftest import is_asleep, providers, wait_for_log
from tests.live.test_listening import databases
from tests.played import plain

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

DOWN = plain(503, "loading model")
PROVIDER = """
from pgembed_django.providers.ollama import OllamaProvider

class Reloaded(OllamaProvider):
    pass
"""


@pytest.fixture
def at_work(start_worker, server):
    """A worker whose only request is not answered before ``server.gate`` is set."""

    def start(*options, **settings):
        server.gate.clear()
        worker = start_worker(*options, PGEMBED_PROVIDERS=providers(server), **settings)
        Note.objects.create(body="slow")
        wait_until(lambda: server.times)
        return worker

    return start


def test_a_slow_request_is_given_back_after_the_grace_time(at_work):
    worker = at_work(PGEMBED_STOP_GRACE_SECONDS=0.5)

    worker.send_signal(signal.SIGTERM)

    assert worker.wait(timeout=60) == 0
    assert_given_back()


def test_what_is_in_flight_is_finished_within_the_grace_time(at_work, server):
    worker = at_work(PGEMBED_STOP_GRACE_SECONDS=3600)
    Note.objects.create(body="not in flight")
    wait_until(lambda: len(server.times) == 2)
    Note.objects.bulk_create(Note(body=f"queued {number}") for number in range(5))
    wait_until(lambda: Job.objects.filter(status="running").count() == 7)

    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: Job.objects.filter(status="running").count() == 2)
    server.gate.set()

    assert worker.wait(timeout=60) == 0
    statuses = Job.objects.order_by("status").values_list("status", "attempts", "crashes")
    assert list(statuses) == [("pending", 0, 0)] * 5 + [("succeeded", 0, 0)] * 2
    assert len(server.times) == 2


def test_a_second_signal_releases_at_once(at_work):
    worker = at_work(PGEMBED_STOP_GRACE_SECONDS=3600)

    worker.send_signal(signal.SIGTERM)
    wait_for_log(worker, "Stopping")
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(timeout=60) == 0
    assert_given_back()


def test_a_worker_that_has_not_begun_ends_at_once(start_worker):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        worker = start_worker(DATABASES=databases(HOST="127.0.0.1", PORT=port))
        connected, _ = silent.accept()

        with connected:
            worker.send_signal(signal.SIGTERM)

            assert worker.wait(timeout=60) == 0


def test_interrupting_is_stopping(at_work, server):
    worker = at_work(PGEMBED_STOP_GRACE_SECONDS=3600)

    worker.send_signal(signal.SIGINT)
    wait_for_log(worker, "Stopping")
    server.gate.set()

    assert worker.wait(timeout=60) == 0
    assert NoteEmbedding.objects.filter(embedding__isnull=False).count() == 1


def test_maintenance_that_dies_takes_the_worker_along_and_nothing_stays_leased(at_work):
    worker = at_work(PGEMBED_RECONCILE_SECONDS=0.2)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgembed_scancursor RENAME TO pgembed_kept")
        try:
            assert worker.wait(timeout=60) == 1
        finally:
            cursor.execute("ALTER TABLE pgembed_kept RENAME TO pgembed_scancursor")

    log = worker.log.read_text()
    assert 'relation "pgembed_scancursor" does not exist' in log
    assert "Traceback" not in log
    assert_given_back()


def test_a_drain_ends_when_nothing_is_left(start_worker):
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(100))

    worker = start_worker("--drain")

    assert worker.wait(timeout=60) == 0
    assert "Embedded 100 rows." in worker.log.read_text()
    assert NoteEmbedding.objects.filter(embedding__isnull=False).count() == 100
    assert not Job.objects.exclude(status="succeeded").exists()
    assert not Worker.objects.exists()


def test_a_drain_beside_a_provider_that_is_down_ends_and_says_what_is_left(start_worker, server):
    server.fault = DOWN
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(40))

    worker = start_worker("--drain", PGEMBED_PROVIDERS=providers(server))

    assert worker.wait(timeout=60) == 1
    log = worker.log.read_text()
    assert "Embedded no rows. 40 still waiting for a provider that is down. default: " in log
    assert "loading model" in log.splitlines()[-1]
    assert "Traceback" not in log
    assert set(Job.objects.values_list("status", "attempts")) == {("pending", 0)}


def test_a_worker_is_restarted_when_code_changes_and_gives_back_before(
    start_worker, server, tmp_path, monkeypatch
):
    module = tmp_path / "reloaded_provider.py"
    module.write_text(PROVIDER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = providers(server)
    settings["default"]["BACKEND"] = "reloaded_provider.Reloaded"
    server.gate.clear()
    reloader = start_worker("--autoreload", PGEMBED_PROVIDERS=settings)
    note = Note.objects.create(body="slow")
    wait_until(lambda: server.times)
    [before] = Worker.objects.values_list("pid", flat=True)

    def is_ended_by_a_change():
        # The reloader compares with its last look, each second: it may not have had one yet.
        stamp = module.stat().st_mtime + 1
        os.utime(module, (stamp, stamp))
        return not Worker.objects.filter(pid=before).exists()

    wait_until(is_ended_by_a_change)
    wait_until(Worker.objects.exists)
    server.gate.set()

    wait_until(lambda: NoteEmbedding.objects.filter(source=note, embedding__isnull=False).exists())
    [(attempts, crashes)] = Job.objects.values_list("attempts", "crashes")
    assert (attempts, crashes) == (0, 0)
    reloader.send_signal(signal.SIGTERM)
    assert reloader.wait(timeout=60) == 0
    assert "Traceback" not in reloader.log.read_text()
    assert not Worker.objects.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_reloader_that_is_stopped_lets_its_worker_give_back(at_work, number):
    reloader = at_work("--autoreload", PGEMBED_STOP_GRACE_SECONDS=0.5)

    reloader.send_signal(number)

    assert reloader.wait(timeout=60) == 0
    assert "Traceback" not in reloader.log.read_text()
    assert_given_back()


def test_ctrl_c_in_a_terminal_stops_a_reloader_and_its_worker(at_work):
    reloader = at_work("--autoreload", PGEMBED_STOP_GRACE_SECONDS=3600)

    os.killpg(reloader.pid, signal.SIGINT)

    assert reloader.wait(timeout=60) == 0
    assert "Traceback" not in reloader.log.read_text()
    assert_given_back()


def assert_given_back() -> None:
    [(status, attempts, crashes)] = Job.objects.values_list("status", "attempts", "crashes")
    assert (status, attempts, crashes) == ("pending", 0, 0)
    assert not Worker.objects.exists()
    assert not is_asleep()


@pytest.mark.parametrize("table", ["pgembed_job", "pgembed_worker", "app_noteembedding"])
def test_a_worker_that_waits_for_a_table_is_stopped_all_the_same(start_worker, connect, table):
    worker = start_worker(PGEMBED_STOP_GRACE_SECONDS=0.5)
    Note.objects.create(body="before")
    wait_until(NoteEmbedding.objects.filter(embedding__isnull=False).exists)
    connect().execute(f"LOCK TABLE {table}")
    wait_until(a_table_is_waited_for)

    worker.send_signal(signal.SIGTERM)

    assert worker.wait(timeout=60) == 0


def test_a_worker_that_waits_for_a_table_to_start_is_stopped_all_the_same(start_worker, connect):
    connect().execute("LOCK TABLE pgembed_space")
    worker = start_worker()
    wait_until(a_table_is_waited_for)

    worker.send_signal(signal.SIGTERM)

    assert worker.wait(timeout=60) == 0


def test_a_worker_whose_connection_is_lost_while_it_starts_tries_again(start_worker, connect):
    somebody = connect()
    somebody.execute("LOCK TABLE pgembed_space")
    worker = start_worker()
    wait_until(a_table_is_waited_for)

    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE {WAITS}")
    wait_for_log(worker, "Lost the database")
    somebody.rollback()

    Note.objects.create(body="note")
    wait_until(NoteEmbedding.objects.filter(embedding__isnull=False).exists)


WAITS = (
    "NOT granted AND locktype = 'relation' AND database = "
    "(SELECT oid FROM pg_database WHERE datname = current_database())"
)


def a_table_is_waited_for() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT EXISTS (SELECT FROM pg_locks WHERE {WAITS})")
        return bool(cursor.fetchone()[0])
