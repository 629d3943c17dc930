"""Moving over from Celery with a real redis-server, stage by stage, with both consumers killed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings as django_settings
from django.db import connection

from pgembed_django.models import Task, TaskOutcome
from pgembed_django.tasks import moving
from tests.app import tasks
from tests.app.models import Note
from tests.conftest import REPOSITORY, testing_url, wait_until

pytestmark = [
    pytest.mark.live,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server"),
]

COUNT = 30
SHORT_LEASES = {"PGEMBED_LEASE_SECONDS": 3, "PGEMBED_REAP_SECONDS": 1}
HERE, THERE = 8, 1
"""How many tasks each of the consumers runs at once: a kill of it may cost so many runs."""
RUNS_AT_ONCE = {"both": HERE + THERE, "shadow": THERE, "postgres": HERE, "off": HERE}

WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture
def redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--dir", str(tmp_path), "--appendonly", "yes"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    url = f"redis://127.0.0.1:{port}/0"
    monkeypatch.setenv("REDIS_URL", url)
    from tests.live.celery_app import app

    app.conf.broker_url = url
    wait_until(lambda: is_open(port))
    yield url
    process.kill()
    process.wait()


def is_open(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def start_celery(redis: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(**settings: Any) -> subprocess.Popen[bytes]:
        with (tmp_path / f"celery-{len(started)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "tests.live.celery_app", "worker",
                 "--pool", "solo", "--without-gossip", "--without-mingle"],
                cwd=REPOSITORY,
                env={**os.environ, "DATABASE_URL": testing_url(),
                     "TEST_SETTINGS": json.dumps(settings)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
    for number in range(len(started)):
        sys.stdout.write((tmp_path / f"celery-{number}.log").read_text())


def set_to(stage: str) -> dict[str, Any]:
    move = {"stage": stage, "send": "tests.live.celery_app.send"}
    options = {} if stage == "off" else {"move": move}
    return {"default": {**django_settings.TASKS["default"], "OPTIONS": options}}


def written(stage: str) -> Counter[str]:
    bodies = Note.objects.filter(body__startswith=f"{stage} ")
    return Counter(bodies.values_list("body", flat=True))


@contextmanager
def held_up(session: psycopg.Connection) -> Iterator[None]:
    """Let no run of ``note_and_wait`` end inside.

    Celery has noted what it runs by then. Were it killed just as it takes a task from Redis's
    list, which is not one step with noting it, that task would be lost, as it always has been.
    """
    session.execute("SELECT pg_advisory_lock(%s)", [tasks.HELD_UP])
    yield
    session.execute("SELECT pg_advisory_unlock(%s)", [tasks.HELD_UP])


def count_waiting() -> int:
    with connection.cursor() as cursor:
        cursor.execute(WAITING)
        return int(cursor.fetchone()[0])


def test_all_four_stages_and_back_with_kills(start_worker, start_celery, settings, connect):
    session = connect(autocommit=True)
    kills = 0
    for stage in ("both", "shadow", "postgres", "shadow", "postgres", "off"):
        name, at_once = f"{stage} {kills}", RUNS_AT_ONCE[stage]
        settings.TASKS = set_to(stage)
        with held_up(session):
            worker = start_worker(TASKS=settings.TASKS, **SHORT_LEASES)
            celery = start_celery(TASKS=settings.TASKS)
            for number in range(COUNT):
                tasks.note_and_wait.enqueue(f"{name} {number}")
            wait_until(lambda at_once=at_once: count_waiting() == at_once)
            # In mid-work, both of them.
            for process in (worker, celery):
                process.kill()
                process.wait()
        kills += 1
        worker = start_worker(TASKS=settings.TASKS, **SHORT_LEASES)
        celery = start_celery(TASKS=settings.TASKS)
        wait_until(lambda name=name: len(written(name)) == COUNT)
        wait_until(lambda: not Task.objects.exists())
        if stage in ("both", "shadow"):
            wait_until(lambda: not missing())
        for process in (worker, celery):
            process.terminate()
            process.wait()
        # Each run beyond those of the consumers that run at all is due to the kill.
        expected = COUNT * (2 if stage == "both" else 1)
        assert sum(written(name).values()) == expected + at_once, stage

    found = moving.compare(since=3600, settled=0.001, limit=100, using="default")
    doubled = [one for one in found if one.what.startswith("doubled")]
    assert len(doubled) <= kills * (HERE + THERE)
    assert found == doubled
    assert not TaskOutcome.objects.filter(function__startswith="off").exists()


def missing() -> list[str]:
    found = moving.compare(since=3600, settled=0.001, limit=1000, using="default")
    return [one.what for one in found if one.what.startswith("missing")]
