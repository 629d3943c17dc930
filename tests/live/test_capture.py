"""Workers that read the write-ahead log: one reads, and nothing is lost when that changes."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.conftest import wait_until
from tests.live.project import Project

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

ITEM = """
class Item(models.Model):
    title = models.TextField()
    is_public = models.BooleanField(default=True)
"""
SETTINGS = """
PGEMBED_RECONCILE_SECONDS = 0  # the reconciler would make up for what is lost
PGEMBED_LEASE_SECONDS = 6
PGEMBED_REAP_SECONDS = 1
"""
ROWS = 30

AS_IT_IS = """
    SELECT id, title
    FROM shop_item
    WHERE is_public
    ORDER BY id
"""
AS_IT_IS_FOUND = """
    SELECT source_id, string_agg(passage, '' ORDER BY position)
    FROM shop_itemembedding
    WHERE embedding IS NOT NULL
    GROUP BY source_id
    ORDER BY source_id
"""
UNFINISHED = "SELECT count(*) FROM pgembed_job WHERE status IN ('pending', 'running')"
SLOTS = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
READER = """
    SELECT active_pid
    FROM pg_replication_slots
    WHERE database = current_database()
      AND active
"""


def embedded(capture: str) -> str:
    return f'@embeddable(fields=["title"], when=Q(is_public=True), capture="{capture}")\n' + ITEM


@pytest.fixture
def start(project: Project, tmp_path: Any) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start workers of the project."""
    settings = project.folder / "shop_settings.py"
    settings.write_text(settings.read_text() + SETTINGS)
    started: list[subprocess.Popen[bytes]] = []

    def start_one() -> subprocess.Popen[bytes]:
        log = tmp_path / f"worker-{len(started)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "django", "embed_worker"],
                env=project.environment,
                cwd=project.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        process.log = log  # type: ignore[attr-defined]
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.wait()
        sys.stdout.write(process.log.read_text())  # type: ignore[attr-defined]
    wait_until(lambda: project.ask(READER) == [])
    project.ask(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
        "WHERE database = current_database()"
    )


class Writer:
    """Writes all the time, in all ways, in a thread with a connection of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.written = 0
        self.error: psycopg.Error | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(timeout=30)

    def write_more(self, count: int = 100) -> None:
        """Wait until it has written so much more."""
        goal = self.written + count
        wait_until(lambda: self.written >= goal or self.error)
        assert self.error is None

    def _run(self) -> None:
        chosen = random.Random(4)
        try:
            with psycopg.connect(self.url, autocommit=True) as server:
                for number in itertools.count():
                    if self._stopping.is_set():
                        return
                    self._write(server, chosen, number)
                    server.execute("SELECT pg_sleep(0.003)")  # as the workers have to keep up
                    self.written += 1
        except psycopg.Error as error:
            self.error = error

    def _write(self, server: psycopg.Connection, chosen: random.Random, number: int) -> None:
        key = chosen.randint(1, ROWS)
        values: dict[str, Any] = {"key": key, "title": f"text {number}", "other": 1000 + number}
        statement = chosen.choices(
            [
                "UPDATE shop_item SET title = %(title)s WHERE id = %(key)s",
                "UPDATE shop_item SET is_public = NOT is_public WHERE id = %(key)s",
                "INSERT INTO shop_item (title, is_public) VALUES (%(title)s, true)",
                "DELETE FROM shop_item WHERE id = (SELECT max(id) FROM shop_item WHERE id > 30)",
                "UPDATE shop_item SET id = %(other)s "
                "WHERE id = (SELECT max(id) FROM shop_item WHERE id BETWEEN 31 AND 999)",
            ],
            [20, 4, 2, 1, 1],
        )[0]
        server.execute(statement, values)


def fill(project: Project) -> None:
    project.ask(
        "INSERT INTO shop_item (title, is_public) "
        f"SELECT 'first ' || n, true FROM generate_series(1, {ROWS}) AS n"
    )


def is_fresh(project: Project) -> bool:
    return project.ask(UNFINISHED) == [(0,)] and project.ask(AS_IT_IS) == project.ask(
        AS_IT_IS_FOUND
    )


def until_fresh(project: Project) -> None:
    try:
        wait_until(lambda: is_fresh(project), seconds=30)
    except pytest.fail.Exception:
        are, found = dict(project.ask(AS_IT_IS)), dict(project.ask(AS_IT_IS_FOUND))
        wrong = {key: (are.get(key), found.get(key)) for key in are.keys() | found.keys()}
        sys.stdout.write(repr({key: both for key, both in wrong.items() if both[0] != both[1]}))
        raise


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("trigger", "wal"),
        ("wal", "trigger"),
        ("trigger", "message"),
        ("message", "trigger"),
    ],
)
def test_another_capture_loses_nothing_while_writers_write(project, start, before, after):
    project.migrated(embedded(before))
    fill(project)
    former = start()
    with Writer(project.url) as writer:
        writer.write_more()
        wait_until(lambda: project.ask(AS_IT_IS_FOUND))
        written = project.migrated(embedded(after))
        writer.write_more()
        former.send_signal(signal.SIGTERM)
        former.wait(timeout=60)
        writer.write_more()
        start()
        writer.write_more()
    assert writer.error is None

    until_fresh(project)

    assert "shop_itemembedding_published" in written


@pytest.mark.parametrize("capture", ["wal", "message"])
def test_when_the_reader_is_killed_another_takes_over(project, start, capture):
    project.migrated(embedded(capture))
    fill(project)
    workers = [start(), start()]
    wait_until(lambda: project.ask(READER))
    until_fresh(project)
    with Writer(project.url) as writer:
        for _ in range(2):
            writer.write_more()
            reading = next(worker for worker in workers if reads(project, worker))
            reading.kill()
            reading.wait()
            workers.remove(reading)
            workers.append(start())
            writer.write_more()
            wait_until(lambda: any(reads(project, worker) for worker in workers))
    assert writer.error is None

    until_fresh(project)

    assert project.ask(SLOTS) == [(1,)]


def reads(project: Project, worker: subprocess.Popen[bytes]) -> bool:
    """Return whether it is this one that has the slot."""
    log = worker.log.read_text()  # type: ignore[attr-defined]
    return worker.poll() is None and "Reading changes from the write-ahead log" in log
