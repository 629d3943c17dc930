"""Whoever interrupts a drain, as a task runner's time limit does, costs no job an attempt."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, connections

from pgembed_django.core import database, locks
from pgembed_django.embedding import writer
from pgembed_django.models import Job
from tests.app.models import Product

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("provider")]

IS_ASLEEP = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"

SLOW_COMMIT = """
    CREATE FUNCTION pg_temp.slowly() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_sleep(1);
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER slowly AFTER {event} ON {table}
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pg_temp.slowly()
"""


class TimeIsUp(Exception):
    """What a signal's handler raises, like celery's SoftTimeLimitExceeded."""


class Interrupt(BaseException):
    """What is thrown into a thread, like dramatiq's TimeLimitExceeded."""


@pytest.fixture
def time_limit() -> Iterator[signal.Signals]:
    """A signal that ends a task."""

    def end(*_: object) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGUSR1, end)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def time_is_up_in_sleep(time_limit, connect) -> Iterator[Callable[[], None]]:
    """Call it to end the task as soon as a backend sleeps."""
    observer = connect(autocommit=True)
    threads: list[threading.Thread] = []

    def interrupt(before: set[tuple[int]]) -> None:
        while before.issuperset(observer.execute(IS_ASLEEP).fetchall()):
            pass
        os.kill(os.getpid(), time_limit)

    def begin() -> None:
        # A backend whose client is gone sleeps on: that of the test before, for instance.
        before = set(observer.execute(IS_ASLEEP).fetchall())
        threads.append(threading.Thread(target=interrupt, args=[before]))
        threads[-1].start()

    yield begin
    for thread in threads:
        thread.join()


@pytest.fixture
def drain(monkeypatch) -> Callable[..., None]:
    """Embed a few rows whose text method does something first."""

    def drain(first: Callable[[], object], *, expecting: type[BaseException]) -> None:
        def pitch(product: Product) -> str:
            first()
            return product.title

        monkeypatch.setattr(Product, "pitch", pitch)
        for title in ("a", "b", "c"):
            Product.objects.create(title=title)
        with pytest.raises(expecting):
            call_command("embed_worker", drain=True, verbosity=0)

    return drain


def assert_that_nobody_was_charged() -> None:
    ended = Job.objects.filter(spec="app.ProductEmbedding")
    assert list(ended.values_list("status", "attempts", "crashes")) == [("pending", 0, 0)] * 3


def test_what_a_signals_handler_raises_in_a_text_method_ends_the_drain(drain, time_limit):
    drain(lambda: signal.raise_signal(time_limit), expecting=TimeIsUp)

    assert_that_nobody_was_charged()


def open_a_file() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    Path(os.devnull).read_bytes()


def start_a_thread() -> None:
    threading.stack_size(2**47)  # no address space has room for it
    threading.Thread(target=int).start()


@pytest.mark.parametrize(("act", "error"), [(open_a_file, OSError), (start_a_thread, RuntimeError)])
def test_a_process_at_a_limit_of_its_system_ends_the_drain(drain, act, error):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        drain(act, expecting=error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        threading.stack_size(0)

    assert_that_nobody_was_charged()


@pytest.mark.parametrize("error", [OSError(24, "Too many"), RuntimeError("can't start")])
def test_what_only_looks_like_a_limit_is_charged(monkeypatch, error):
    def pitch(product: Product) -> str:
        raise error

    monkeypatch.setattr(Product, "pitch", pitch)
    Product.objects.create(title="a")

    call_command("embed_worker", drain=True, verbosity=0)

    assert Job.objects.get(spec="app.ProductEmbedding").attempts == 1


def test_what_is_thrown_into_a_text_method_ends_the_drain(drain):
    def be_interrupted() -> None:
        thread = ctypes.c_ulong(threading.get_ident())
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(Interrupt))
        list(map(str, range(100)))  # it comes between two instructions

    def drain_here() -> None:
        connections["default"] = shared
        drain(be_interrupted, expecting=Interrupt)

    # In a thread of its own: after a thread could not start, Python 3.11 throws what is meant for
    # the thread that tried into the one that never ran.
    shared = connections["default"]
    shared.inc_thread_sharing()
    try:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(drain_here).result()
    finally:
        shared.dec_thread_sharing()

    assert_that_nobody_was_charged()


def test_what_is_raised_in_the_middle_of_a_statement_ends_the_drain(drain, time_is_up_in_sleep):
    def ask() -> None:
        time_is_up_in_sleep()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(5)")

    drain(ask, expecting=TimeIsUp)

    assert_that_nobody_was_charged()


@pytest.mark.parametrize(
    ("event", "table"), [("INSERT", "app_productembedding"), ("UPDATE", "pgembed_scancursor")]
)
def test_what_is_raised_in_a_commit_ends_the_drain(
    drain, time_is_up_in_sleep, connect, monkeypatch, event, table
):
    # On a busy machine, text would be stored before its vectors.
    monkeypatch.setattr(writer, "LATE_SECONDS", 60.0)
    other = connect(autocommit=True)
    other.execute(SLOW_COMMIT.format(event=event, table=table))
    time_is_up_in_sleep()

    drain(lambda: None, expecting=TimeIsUp)

    # Postgres commits nonetheless, so what was being stored is stored.
    other.execute(f"DROP TRIGGER slowly ON {table}")
    ended = Job.objects.filter(spec="app.ProductEmbedding")
    assert set(ended.values_list("status", "attempts", "crashes")) == {("succeeded", 0, 0)}


def test_what_is_raised_under_the_lock_of_a_session_is_not_hidden(time_is_up_in_sleep):
    time_is_up_in_sleep()

    with pytest.raises(TimeIsUp), locks.session_lock("test", using="default"):
        database.rows("default", "SELECT pg_sleep(5)")

    connection.close()
