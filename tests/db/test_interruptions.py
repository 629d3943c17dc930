"""Whoever interrupts a drain, as a task runner's time limit does, costs no job an attempt."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from django.core.management import call_command
from django.db import connection

from pgembed_django.models import Job
from tests.app.models import Product

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("provider")]

IS_ASLEEP = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"


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


def test_what_is_thrown_into_a_text_method_ends_the_drain(drain):
    def be_interrupted() -> None:
        raise Interrupt

    drain(be_interrupted, expecting=Interrupt)

    assert_that_nobody_was_charged()


def test_what_is_raised_in_the_middle_of_a_statement_ends_the_drain(drain, time_limit, connect):
    observer = connect(autocommit=True)

    def interrupt() -> None:
        while observer.execute(IS_ASLEEP).fetchone() is None:
            pass
        os.kill(os.getpid(), time_limit)

    def ask() -> None:
        threading.Thread(target=interrupt).start()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(5)")

    drain(ask, expecting=TimeIsUp)

    assert_that_nobody_was_charged()
