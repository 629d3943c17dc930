"""A worker whose loop is busy for long is alive, and every status says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.db.models.functions import Now

from pgembed_django.models import Worker
from pgembed_django.ops import status
from pgembed_django.queue import liveness
from tests.app.models import Product
from tests.conftest import wait_until
from tests.played.provider import PlayedProvider

pytestmark = pytest.mark.django_db(transaction=True)  # the worker has connections of its own

LONG_AGO = Now() - timedelta(seconds=100)
"""Long enough to be believed dead, and not yet to be forgotten."""


class Gate:
    """Where a worker stands until the test is over."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> str:
        self.reached.set()
        self._open.wait(30)
        return "passed"

    @contextmanager
    def holding(self, work: Callable[[], Any]) -> Iterator[None]:
        def run() -> None:
            try:
                work()
            finally:
                connections.close_all()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert self.reached.wait(30)
            yield
        finally:
            self._open.set()
            thread.join(30)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    monkeypatch.setattr(liveness, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(liveness, "LATE_SECONDS", 0.05)
    Product.objects.create(title="slow")
    return Gate()


def is_live() -> bool:
    [worker] = status.overview(using="default").workers
    return worker.is_live


def drain() -> None:
    call_command("embed_worker", drain=True, verbosity=0)


@pytest.mark.parametrize(
    ("owner", "code"), [(Product, "pitch"), (PlayedProvider, "warm_up")], ids=["text", "start"]
)
@pytest.mark.usefixtures("provider")
def test_a_worker_that_stands_in_one_call_for_long_is_alive(monkeypatch, gate, owner, code):
    monkeypatch.setattr(owner, code, gate)

    with gate.holding(drain):
        Worker.objects.update(last_seen_at=LONG_AGO)
        wait_until(is_live)

    assert not Worker.objects.exists()
