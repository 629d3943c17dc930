"""Tasks in real workers: killed, stopped, in processes, and cut off from the database."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from django.db import connection

from pgembed_django.models import Attempt, Task, Worker
from tests.app import tasks
from tests.app.models import Note
from tests.conftest import wait_until

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

SOON = {
    "PGEMBED_LEASE_SECONDS": 2,
    "PGEMBED_REAP_SECONDS": 0.1,
    "PGEMBED_POLL_SECONDS": 0.5,
    "PGEMBED_BACKOFF_SECONDS": 0.1,
}

PLACES = pytest.mark.parametrize(
    "options", [(), ("--processes", "2")], ids=["threads", "processes"]
)


def began(folder: Path) -> dict[str, int]:
    """Return the processes of the tasks that have begun, by their keys."""
    texts = {path.name: path.read_text() for path in folder.glob("*.began")}
    return {name: int(text) for name, text in texts.items() if text}


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return status != "Z"
    return False


def wait_for_end() -> None:
    wait_until(lambda: not Task.objects.exists())


@PLACES
def test_nothing_is_lost_or_doubled_when_a_worker_is_killed_in_mid_task(
    start_worker, tmp_path, options
):
    gate = tmp_path / "gate"
    for _ in range(4):
        tasks.wait_for.enqueue(str(gate))
    worker = start_worker(*options, **SOON)
    running = wait_until(lambda: len(began(tmp_path)) >= 2 and began(tmp_path))
    children = {pid for pid in running.values() if pid != worker.pid}
    assert bool(children) == bool(options)

    worker.kill()
    worker.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in children))
    gate.touch()
    start_worker(*options, **SOON)
    wait_for_end()

    keys = [note.body for note in Note.objects.all()]
    assert sorted(keys) == sorted(set(keys))
    assert len(keys) == 4


def test_the_task_that_kills_its_worker_fails_alone(start_worker, tmp_path):
    notes = tmp_path / "runs"
    tasks.die.enqueue(str(notes))
    tasks.note.enqueue("neighbour")
    settings = {**SOON, "PGEMBED_MAX_CRASHES": 2}

    for _ in range(2):
        assert start_worker(**settings).wait(timeout=60) == -signal.SIGKILL
    start_worker(**settings)
    wait_until(Task.objects.filter(status="failed").exists)
    wait_until(lambda: Task.objects.count() == 1)

    assert Task.objects.get().last_error == "worker lost"
    assert Task.objects.get().crashes == 2
    assert len(notes.read_text().splitlines()) == 2
    assert {note.body for note in Note.objects.all()} == {"neighbour"}


def test_the_task_that_kills_its_process_counts_a_crash_and_harms_no_other(start_worker, tmp_path):
    notes = tmp_path / "runs"
    tasks.die.enqueue(str(notes))
    for number in range(5):
        tasks.note.enqueue(f"neighbour {number}")

    worker = start_worker("--processes", "2", **SOON, PGEMBED_MAX_CRASHES=2)
    failed = wait_until(Task.objects.filter(status="failed").first)
    wait_until(lambda: Task.objects.count() == 1)

    assert (failed.crashes, failed.attempts) == (2, 0)
    assert failed.last_error == "its process ended with status -9"
    assert len(notes.read_text().splitlines()) == 2
    assert Note.objects.count() == 5
    assert worker.poll() is None


def test_a_process_whose_time_is_up_is_killed_and_another_one_goes_on(start_worker, tmp_path):
    tasks.hang.enqueue(str(tmp_path / "gate"))
    start_worker("--processes", "1", **SOON)

    failed = wait_until(Task.objects.filter(status="failed").first)
    (tmp_path / "gate").touch()
    tasks.note.enqueue("next")
    wait_until(lambda: Task.objects.count() == 1)

    assert (failed.crashes, failed.attempts) == (0, 2)
    assert failed.last_error == "builtins.TimeoutError: No end within 0.3 s"
    assert {note.body for note in Note.objects.all()} == {"next"}


@PLACES
def test_a_stopping_worker_lets_running_tasks_end_and_gives_the_others_back(
    start_worker, tmp_path, options
):
    gate = tmp_path / "gate"
    for _ in range(6):
        tasks.wait_for.enqueue(str(gate))
    options = options or ("--tasks-concurrency", "2")
    worker = start_worker(*options, PGEMBED_STOP_GRACE_SECONDS=3600)
    wait_until(lambda: len(began(tmp_path)) == 2)

    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: "Stopping" in worker.log.read_text())
    gate.touch()

    assert worker.wait(timeout=60) == 0
    assert Note.objects.count() == 2
    states = Task.objects.values_list("status", "attempts", "crashes", "worker_id")
    assert [*states] == [("pending", 0, 0, None)] * 4
    assert not Worker.objects.exists()


@PLACES
def test_after_the_grace_time_running_tasks_are_given_back(start_worker, tmp_path, options):
    tasks.wait_for.enqueue(str(tmp_path / "gate"))
    worker = start_worker(*options, PGEMBED_STOP_GRACE_SECONDS=0.2)
    [pid] = wait_until(lambda: began(tmp_path).values())

    worker.send_signal(signal.SIGTERM)

    assert worker.wait(timeout=60) == 0
    wait_until(lambda: not is_alive(pid))
    states = Task.objects.values_list("status", "attempts", "crashes", "worker_id")
    assert [*states] == [("pending", 0, 0, None)]


@PLACES
def test_a_person_asks_a_running_task_to_end(start_worker, tmp_path, options):
    tasks.wait_for.enqueue(str(tmp_path / "gate"))
    start_worker(*options)
    wait_until(lambda: began(tmp_path))

    Task.objects.update(cancel_asked_at="2026-01-01T00:00:00Z")

    wait_for_end()
    assert not Note.objects.exists()


@PLACES
def test_sessions_that_are_cut_off_in_mid_completion_cost_no_attempt_and_double_nothing(
    start_worker, tmp_path, options
):
    for number in range(60):
        tasks.note_slowly.enqueue(f"note {number}")
    start_worker(*options, **SOON)

    for _ in range(8):
        wait_until(lambda: terminate("idle in transaction"))
    wait_for_end()

    assert not Attempt.objects.exists()
    bodies = [note.body for note in Note.objects.all()]
    assert sorted(bodies) == sorted(f"note {number}" for number in range(60))


def terminate(state: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = %s",
            [state],
        )
        return cursor.fetchone()[0]


@PLACES
def test_a_task_may_ask_for_another_run(start_worker, tmp_path, options):
    """What a process answers with may be pickled, and not be made again of it."""
    tasks.run_twice.enqueue(str(tmp_path / "first"))
    tasks.fail_oddly.enqueue(str(tmp_path / "odd"))
    start_worker(*options, **SOON)

    wait_for_end()

    assert Note.objects.get().body == "second run"


def test_what_a_task_starts_in_a_process_can_be_ended(start_worker):
    tasks.end_helpers.enqueue()
    start_worker("--processes", "1", **SOON)

    wait_for_end()

    assert Note.objects.get().body == "-15 -15"


def test_what_a_killed_process_has_started_holds_up_no_other_task(start_worker, tmp_path):
    gate = tmp_path / "gate"
    tasks.leave_helpers.enqueue(str(gate))
    start_worker("--processes", "1", **SOON)
    try:
        wait_until(Task.objects.filter(status="failed").exists)
        tasks.note.enqueue("next")
        wait_until(Note.objects.exists)
    finally:
        gate.touch()
