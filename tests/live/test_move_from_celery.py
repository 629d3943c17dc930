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
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

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
AT_ONCE = 8 + 1
"""How many tasks both consumers run at once, so that a kill of both may cost so many runs."""


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


def test_all_four_stages_and_back_with_kills(start_worker, start_celery, settings):
    kills = 0
    for stage in ("both", "shadow", "postgres", "shadow", "postgres", "off"):
        name = f"{stage} {kills}"
        settings.TASKS = set_to(stage)
        worker = start_worker(TASKS=settings.TASKS, **SHORT_LEASES)
        celery = start_celery(TASKS=settings.TASKS)
        for number in range(COUNT):
            tasks.note.enqueue(f"{name} {number}")
        wait_until(lambda name=name: written(name))
        # In mid-work, both of them.
        for process in (worker, celery):
            process.kill()
            process.wait()
        kills += 2
        worker = start_worker(TASKS=settings.TASKS, **SHORT_LEASES)
        celery = start_celery(TASKS=settings.TASKS)
        wait_until(lambda name=name: len(written(name)) == COUNT)
        wait_until(lambda: not Task.objects.exists())
        if stage in ("both", "shadow"):
            wait_until(lambda: not missing())
        for process in (worker, celery):
            process.terminate()
            process.wait()
        # Each run beyond those of the consumers that run at all is due to a kill.
        runs = sum(written(name).values())
        expected = COUNT * (2 if stage == "both" else 1)
        assert expected <= runs <= expected + AT_ONCE, stage

    found = moving.compare(since=3600, settled=0.001, limit=100, using="default")
    doubled = [one for one in found if one.what.startswith("doubled")]
    assert len(doubled) <= kills * AT_ONCE
    assert found == doubled
    assert not TaskOutcome.objects.filter(function__startswith="off").exists()


def missing() -> list[str]:
    found = moving.compare(since=3600, settled=0.001, limit=1000, using="default")
    return [one.what for one in found if one.what.startswith("missing")]
