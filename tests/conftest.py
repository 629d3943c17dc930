"""Fixtures for all tests. Factories named ``make_…`` build only possible rows."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.db import connection, connections
from django.test import TransactionTestCase

from pgembed_django import testing
from tests import cleanup

if TYPE_CHECKING:
    from tests.app.models import Article

PUBLISHED = "2026-01-01T00:00:00Z"
REPOSITORY = Path(__file__).resolve().parents[1]

TransactionTestCase._fixture_teardown = cleanup.fixture_teardown
with suppress(ImportError):  # beside other packages
    import hypothesis

    # A busy machine takes longer now and then.
    hypothesis.settings.register_profile("unhurried", deadline=None)
    hypothesis.settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    with django_db_blocker.unblock():
        cleanup.remember("default")


@pytest.fixture
def run_jobs() -> Callable[[], int]:
    return testing.run_jobs


@pytest.fixture
def make_article() -> Callable[..., Article]:
    numbers = itertools.count(1)

    def make(**values: Any) -> Article:
        from tests.app.models import Article  # may not be installed

        number = next(numbers)
        defaults = {
            "title": f"Title {number}",
            "contents": f"Contents of article {number}",
            "published_time": PUBLISHED,
        }
        return Article.objects.create(**{**defaults, **values})

    return make


@pytest.fixture
def connect() -> Iterator[Callable[[], psycopg.Connection]]:
    """Further connections to the test database, each with an open transaction."""
    opened = []

    def open_one(**options: Any) -> psycopg.Connection:
        parameters = connections["default"].get_connection_params()
        for name in ("cursor_factory", "context"):
            parameters.pop(name, None)
        opened.append(psycopg.connect(**parameters, **options))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def second_connection(connect: Callable[[], psycopg.Connection]) -> psycopg.Connection:
    return connect()


def embedded_text(article: Article) -> str | None:
    """Return the stored passages of an article that have vectors, joined."""
    from tests.app.models import ArticleEmbedding

    rows = ArticleEmbedding.objects.filter(source=article, embedding__isnull=False)
    passages = rows.order_by("position").values_list("passage", flat=True)
    return "\n".join(passages) if passages else None


def wait_until(condition: Callable[[], Any], *, seconds: float = 60.0) -> Any:
    """Return the condition's first true value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            pytest.fail(f"Not within {seconds} s")
        # Any statement but a look at what another process has committed.
        connection.cursor().execute("SELECT pg_sleep(0.002)")
    return value


@pytest.fixture
def start_command(
    transactional_db: None, tmp_path: Any
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start real ``embed_…`` processes on the test database, with settings of their own.

    ``log`` of a process is the path of what it writes.
    """
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **settings: Any) -> subprocess.Popen[str]:
        path = tmp_path / f"process-{len(started)}.log"
        with path.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "django", *arguments],
                cwd=REPOSITORY,
                env={
                    **os.environ,
                    "DATABASE_URL": testing_url(),
                    "TEST_SETTINGS": json.dumps(settings),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        process.log = path
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):  # a reloader's child is ended with it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        sys.stdout.write(process.log.read_text())  # shown if the test fails


@pytest.fixture
def start_worker(
    start_command: Callable[..., subprocess.Popen[str]],
) -> Callable[..., subprocess.Popen[str]]:
    return partial(start_command, "embed_worker")


@pytest.fixture
def start_drowsy_worker(
    start_command: Callable[..., subprocess.Popen[str]],
) -> Callable[..., subprocess.Popen[str]]:
    """Start workers that do nothing for an hour unless something wakes them."""
    hour = 3600.0
    return partial(
        start_command,
        "drowsy_worker",
        PGEMBED_POLL_SECONDS=hour,
        PGEMBED_RECONCILE_SECONDS=0,
        PGEMBED_LEASE_SECONDS=3 * hour,
    )


def testing_url() -> str:
    """Return the address of the test database, for other processes."""
    settings = connections["default"].settings_dict
    host = settings["HOST"] or settings["OPTIONS"].get("host", "")
    port = f"&port={settings['PORT']}" if settings["PORT"] else ""
    password = f":{settings['PASSWORD']}" if settings["PASSWORD"] else ""
    return f"postgres://{settings['USER']}{password}@/{settings['NAME']}?host={host}{port}"


testing_url.__test__ = False  # type: ignore[attr-defined]


@contextmanager
def no_more_threads() -> Iterator[None]:
    """Let the system refuse every new thread: no address space has room for its stack."""
    before = threading.stack_size(2**47)
    try:
        yield
    finally:
        threading.stack_size(before)
