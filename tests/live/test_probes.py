"""Liveness, readiness and recycling, of real processes."""

from __future__ import annotations

import os
import re
import socket
import urllib.error
import urllib.request

import psycopg
import pytest
from django.db import connection

from pgembed_django.models import Job, Worker
from tests.app.models import Note, NoteEmbedding, Product
from tests.conftest import wait_until
from tests.live.conftest import providers, wait_for_log
from tests.live.test_listening import databases
from tests.played import plain

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

STUCK_SECONDS = 2


@pytest.fixture
def address() -> str:
    """An address that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def get(address: str, path: str, *, seconds: float = 20) -> tuple[int, str]:
    """Return what a probe gets. Zero: nobody is there."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=seconds) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def gauge(address: str, name: str) -> float:
    """Return a metric without labels."""
    found = re.search(rf"^{name} (\S+)$", get(address, "/metrics")[1], re.MULTILINE)
    assert found, name
    return float(found[1])


def is_ready(address: str) -> bool:
    return get(address, "/readyz") == (200, "ready\n")


def test_a_pool_as_small_as_by_default_leaves_the_probes_a_connection(start_worker, address):
    options = {**connection.settings_dict["OPTIONS"], "pool": {"timeout": 1}}
    worker = start_worker("--listen", address, DATABASES=databases(OPTIONS=options))
    # So many that they are stored by a connection of its own.
    notes = Note.objects.bulk_create(Note(body=f"note {number}") for number in range(500))
    wait_until(lambda: NoteEmbedding.objects.count() == len(notes))

    assert is_ready(address)
    assert gauge(address, "pgembed_queue_up") == 1
    worker.terminate()
    assert worker.wait(timeout=60) == 0


def test_a_loop_that_is_stuck_fails_liveness_and_says_where(
    start_worker, address, tmp_path, monkeypatch
):
    gate, heartbeat = tmp_path / "gate", tmp_path / "heartbeat"
    os.mkfifo(gate)
    monkeypatch.setenv("TEST_PITCH_GATE", str(gate))
    worker = start_worker(
        *("--listen", address, "--heartbeat-file", str(heartbeat)),
        PGEMBED_STUCK_SECONDS=STUCK_SECONDS,
        PGEMBED_RECONCILE_SECONDS=0,
    )
    wait_until(lambda: is_ready(address))
    assert get(address, "/healthz") == (200, "ok\n")
    assert heartbeat.exists()

    Product.objects.create(title="A secret")

    wait_until(lambda: get(address, "/healthz")[0] == 503)
    assert "tests.app.models:" in get(address, "/healthz")[1]
    assert get(address, "/readyz") == (503, "stuck\n")
    assert "secret" not in wait_for_log(worker, "has been stuck")
    before = heartbeat.stat().st_mtime_ns
    age = gauge(address, "pgembed_loop_age_seconds")
    wait_until(lambda: gauge(address, "pgembed_loop_age_seconds") > age + STUCK_SECONDS)
    assert gauge(address, "pgembed_stuck") == 1
    assert heartbeat.stat().st_mtime_ns == before

    gate.rename(tmp_path / "opened")
    (tmp_path / "opened").write_text("go on")

    wait_until(lambda: get(address, "/healthz")[0] == 200)
    wait_until(lambda: heartbeat.stat().st_mtime_ns > before)
    wait_for_log(worker, "moves again")
    worker.terminate()
    assert worker.wait(timeout=60) == 0
    assert not heartbeat.exists()


def test_a_worker_that_is_stuck_at_a_row_ends_and_charges_that_row_alone(
    start_worker, tmp_path, monkeypatch
):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    monkeypatch.setenv("TEST_PITCH_GATE", str(gate))
    settings = {"PGEMBED_STUCK_SECONDS": 0.5, "PGEMBED_MAX_CRASHES": 1}
    for title in ("before", "A secret", "after"):
        Product.objects.create(title=title)
    Note.objects.create(body="of another spec")

    assert start_worker(**settings).wait(timeout=60) == 1

    failure = Job.objects.get(status="failed")
    assert Product.objects.get(pk=failure.source_pk).title == "A secret"
    assert "No end of its code within 0.5 s: tests.app.models:" in failure.last_error
    assert "secret" not in failure.last_error

    start_worker(**settings)
    others = Job.objects.exclude(pk=failure.pk)
    wait_until(lambda: not others.exclude(status="succeeded").exists())
    assert set(others.values_list("attempts", "crashes")) == {(0, 0)}


def test_an_outage_of_whatever_kind_is_not_being_stuck(start_worker, server, address, connect):
    worker = start_worker(
        *("--listen", address),
        PGEMBED_STUCK_SECONDS=STUCK_SECONDS,
        PGEMBED_PROVIDERS=providers(server),
    )
    wait_until(lambda: is_ready(address))

    # A slow provider: others wait for it, the loop comes round.
    server.gate.clear()
    Note.objects.create(body="slow")
    wait_until(lambda: server.times)
    assert_lives(address, seconds=STUCK_SECONDS + 1)
    server.fault = plain(503, "down")
    server.gate.set()
    wait_for_log(worker, "is paused", times=2)
    assert is_ready(address)

    # A statement that is held up: the loop waits for longer than it may be stuck.
    with connect() as holder:
        holder.execute("LOCK TABLE pgembed_job IN ACCESS EXCLUSIVE MODE")
        assert_lives(address, seconds=STUCK_SECONDS + 1)
        assert gauge(address, "pgembed_queue_up") == 0

    # No database at all.
    name = connection.settings_dict["NAME"]
    parameters = connection.get_connection_params()
    parameters.pop("cursor_factory", None)
    parameters.pop("context", None)
    with psycopg.connect(**{**parameters, "dbname": "postgres"}, autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false')
        try:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = %s AND pid <> %s",
                [name, connection.connection.info.backend_pid],
            )
            wait_until(lambda: get(address, "/readyz") == (503, "the database is away\n"))
            assert_lives(address, seconds=STUCK_SECONDS + 1)
        finally:
            admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true')
    server.fault = None
    wait_until(lambda: is_ready(address), seconds=60)
    wait_until(lambda: NoteEmbedding.objects.filter(embedding__isnull=False).exists(), seconds=60)
    assert "stuck" not in worker.log.read_text()


def assert_lives(address: str, *, seconds: float) -> None:
    """Look at the liveness for so long: it may not fail once."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        [start] = cursor.fetchone()

        def is_over() -> bool:
            assert get(address, "/healthz") == (200, "ok\n")
            cursor.execute("SELECT extract(epoch FROM clock_timestamp() - %s)", [start])
            return cursor.fetchone()[0] > seconds

        wait_until(is_over)


def test_a_worker_with_unapplied_migrations_is_not_ready(start_worker, address):
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM django_migrations WHERE app = 'pgembed' RETURNING name, applied"
        )
        rows = cursor.fetchall()
        try:
            start_worker("--listen", address)
            wait_until(lambda: "migrations are not applied" in get(address, "/readyz")[1])
        finally:
            cursor.executemany(
                "INSERT INTO django_migrations (app, name, applied) VALUES ('pgembed', %s, %s)",
                rows,
            )
    wait_until(lambda: is_ready(address))


def test_one_probe_alone_waits_for_a_look_at_the_migrations(
    start_worker, address, second_connection
):
    second_connection.execute("LOCK TABLE django_migrations")
    start_worker("--listen", address)

    def said() -> str:
        return get(address, "/readyz", seconds=1)[1]

    wait_until(lambda: said() == "still looking at migrations\n")
    second_connection.rollback()
    wait_until(lambda: is_ready(address))


def test_a_port_that_is_in_use_is_told_before_anything_is_claimed(start_worker, address):
    host, _, port = address.partition(":")
    Note.objects.create(body="unclaimed")
    with socket.socket() as other:
        other.bind((host, int(port)))
        other.listen()

        worker = start_worker("--listen", address)

        assert worker.wait(timeout=60) == 2
    assert f"Cannot listen on {address}: Address already in use." in worker.log.read_text()
    assert Job.objects.get().claims == 0
    assert not Worker.objects.exists()


def test_after_so_many_rows_a_worker_ends_to_be_started_again(start_worker):
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(500))

    worker = start_worker("--max-jobs", "100", "--batch-size", "10")

    assert worker.wait(timeout=60) == 3
    log = worker.log.read_text()
    done = Job.objects.filter(status="succeeded").count()
    assert 100 <= done < 500
    assert "--max-jobs is 100" in log
    assert f"Embedded {done} rows." in log
    assert not Job.objects.filter(status="running").exists()
    assert not Job.objects.filter(attempts__gt=0).exists()
    assert not Worker.objects.exists()


def test_a_worker_that_uses_too_much_memory_ends_to_be_started_again(start_worker):
    worker = start_worker("--max-memory", "10")

    assert worker.wait(timeout=60) == 3
    assert re.search(r"it uses \d+ MiB, --max-memory is 10", worker.log.read_text())
    assert not Worker.objects.exists()


def test_a_worker_that_traces_needs_no_more_than_the_api(start_worker):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('pgembed.traceparent', %s, false)",
            ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
        )
        Note.objects.create(body="traced")
        cursor.execute("RESET pgembed.traceparent")
    assert Job.objects.get().traceparent

    worker = start_worker("--drain", PGEMBED_TRACING=True)

    assert worker.wait(timeout=60) == 0
    assert Job.objects.get().status == "succeeded"
    assert "Traceback" not in worker.log.read_text()


def test_metrics_that_have_no_folder_are_refused_at_the_start(start_worker, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/nowhere")

    worker = start_worker("--drain", "--listen", "0")

    assert worker.wait(timeout=60) == 2
    written = worker.log.read_text()
    assert "Cannot count for /metrics: [Errno 2] No such file or directory: '/nowhere/" in written
    assert "Traceback" not in written
