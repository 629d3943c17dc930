"""Workers that a test moves step by step, and writers that may be made to wait."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, connection
from django.test import Client

from pgembed_django import conf, spaces
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.models import Job, ScanCursor, Space
from pgembed_django.queue import jobs
from pgembed_django.queue import maintenance as queue_maintenance
from pgembed_django.queue.work import Work
from pgembed_django.retrieval import query_vectors
from pgembed_django.spaces import reconcile
from tests import played
from tests.app.models import Note
from tests.captures import capture as capture
from tests.conftest import wait_until
from tests.played.provider import PlayedProvider
from tests.providers import Moody

LEASE_SECONDS = 600


@pytest.fixture
def no_known_queries() -> Iterator[None]:
    """No vector of a query is kept from an earlier test, nor for a later one."""
    query_vectors.vectors.clear()
    yield
    query_vectors.vectors.clear()


@pytest.fixture
def clock() -> played.Clock:
    """Stands still: what is done after a while is not done because a test is slow."""
    return played.Clock()


@pytest.fixture
def make_worker(clock: played.Clock) -> Callable[..., Work]:
    """Make workers that move only when told.

    The first ``step`` claims, reads and embeds; the next one stores. Between the two the
    worker is at work on the row.
    """
    numbers = itertools.count(1)

    def make(*, worker_id: int | None = None, using: str = "default", **settings: Any) -> Work:
        known = {spec.key: spec for spec in specs.all()}
        for spec in known.values():
            spaces.ensure(spec, using=using)
        chosen = dataclasses.replace(conf.current(), **settings)
        return Work(
            EmbeddingHandler(known, using=using, settings=chosen),
            using=using,
            worker_id=next(numbers) if worker_id is None else worker_id,
            settings=chosen,
            inline=True,
            clock=clock,
        )

    return make


class Maintenance(queue_maintenance.Maintenance):
    """The chores of a worker that embeds some specs, to be done one by one."""

    def __init__(
        self,
        known: Mapping[str, Spec],
        *,
        settings: conf.Settings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = settings or conf.current()
        handler = EmbeddingHandler(known, using="default", settings=settings)
        super().__init__(
            [handler], using="default", settings=settings, wake=lambda: None, clock=clock
        )
        self.upkeep = handler.upkeep


@pytest.fixture
def make_client() -> Callable[..., Client]:
    """Clients of staff with these permissions, for instance ``"pgembed.view_job"``."""

    def make(*permissions: str) -> Client:
        user = User.objects.create_user(f"user {User.objects.count()}", is_staff=True)
        for label in permissions:
            app, codename = label.split(".")
            user.user_permissions.add(
                Permission.objects.get(content_type__app_label=app, codename=codename)
            )
        client = Client()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def viewer(make_client: Callable[..., Client]) -> Client:
    return make_client("pgembed.view_job")


@pytest.fixture
def provider(settings: Any) -> Iterator[type[PlayedProvider]]:
    """Embed with a provider that counts, refuses and goes down."""
    settings.PGEMBED_PROVIDERS = {
        "default": {
            "BACKEND": "tests.played.provider.PlayedProvider",
            "MODEL": "bag-of-words",
            "DIMENSIONS": 64,
        }
    }
    PlayedProvider.reset()
    yield PlayedProvider
    PlayedProvider.reset()


@pytest.fixture(scope="module")
def without_dead_rows(django_db_setup: None, django_db_blocker: Any) -> None:
    """Rows that tests before have rolled back make a table look large: it would be sampled."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("VACUUM app_article")


@pytest.fixture
def impatient() -> Iterator[None]:
    """What waits for an open writer fails here, where it would hang."""
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '30s'")
    yield
    if connection.connection is not None and not connection.needs_rollback:
        with connection.cursor() as cursor:
            cursor.execute("RESET statement_timeout")


class Writer:
    """Runs statements on a connection of its own, in a thread, so that it may wait."""

    def __init__(self, own: psycopg.Connection, observer: psycopg.Connection) -> None:
        self.connection = own
        self.pid = own.info.backend_pid
        self._observer = observer
        self._thread = ThreadPoolExecutor(1)
        self._future: Future[Any] | None = None
        self._go = threading.Event()

    def start(self, statement: str, *parameters: Any, once_waits: int | None = None) -> None:
        """Run a statement; with ``once_waits`` when that backend waits for a lock, or ``go``."""

        def run() -> None:
            if once_waits is not None:
                while not self._go.is_set() and not _waits(self._observer, once_waits):
                    pass
            self.connection.execute(statement, parameters or None)

        self._future = self._thread.submit(run)

    def go(self) -> None:
        self._go.set()

    def is_waiting(self) -> bool:
        return _waits(self._observer, self.pid)

    def has_started(self) -> bool:
        return self._future is not None

    def has_ended(self) -> bool:
        return self._future is not None and self._future.done()

    def end(self) -> None:
        """Wait for the statement, and raise what it raised."""
        assert self._future is not None
        self._future.result(timeout=30)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.connection.close()


@pytest.fixture
def writer(connect: Callable[..., psycopg.Connection]) -> Iterator[Writer]:
    one = Writer(connect(), connect(autocommit=True))
    yield one
    one.close()


def _waits(observer: psycopg.Connection, pid: int) -> bool:
    row = observer.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid]).fetchone()
    return bool(row and row[0])


def until_waiting(writer: Writer) -> None:
    wait_until(writer.is_waiting, seconds=10)


def backend_pid() -> int:
    connection.ensure_connection()
    return connection.connection.info.backend_pid


def claim(*, limit: int = 100, worker_id: int = 1, **options: Any) -> list[jobs.Claim]:
    """Claim whatever is due, of any spec that has jobs."""
    known = list(Job.objects.order_by("spec").values_list("spec", flat=True).distinct())
    return jobs.claim(
        known,
        limit=limit,
        lease=jobs.Lease(worker_id, LEASE_SECONDS),
        using="default",
        **options,
    )


def expire_leases() -> None:
    """Let all leases have run out, by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgembed_job SET lease_expires_at = now() - interval '1 second' "
            "WHERE status = 'running'"
        )


def reconcile_deeply(key: str) -> int:
    """Look for gaps of every kind. Returns how many jobs were added."""
    spec = specs.get(key)
    assert spec is not None
    return reconcile.reconcile_once(spec, using="default", scans=list(ScanCursor.Scan))


def reap(*, max_crashes: int = 3) -> list[str]:
    return [result for _, result in jobs.reap(max_crashes=max_crashes, using="default")]


def make_due() -> None:
    """Let every backoff and parking be over."""
    Job.objects.update(run_at="2020-01-01T00:00:00Z")


@pytest.fixture
def declare(settings: Any) -> Iterator[Callable[[str], None]]:
    def declare(model: str) -> None:
        settings.PGEMBED_PROVIDERS = {
            "default": {"BACKEND": "tests.providers.Moody", "MODEL": model, "DIMENSIONS": 64}
        }

    declare("old")
    yield declare
    Moody.down, Moody.fatal, Moody.refusing, Moody.asked = set(), {}, {}, []


@pytest.fixture
def swap(declare, run_jobs) -> Space:
    """A space that is being built beside the one that holds five notes. None is in it."""
    for number in range(5):
        Note.objects.create(body=f"trout {number}")
    run_jobs()
    declare("new")
    _, building = spaces.ensure(specs.get("app.NoteEmbedding"), using="default")
    Moody.asked.clear()
    return building


@contextmanager
def lock_refusals() -> Iterator[list[str]]:
    """Return the statements that meanwhile gave up waiting for a lock."""
    refused: list[str] = []

    def note(execute: Callable[..., Any], statement: Any, *rest: Any) -> Any:
        try:
            return execute(statement, *rest)
        except OperationalError as error:
            if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                refused.append(str(statement))
            raise

    with connection.execute_wrapper(note):
        yield refused
