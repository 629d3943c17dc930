"""How the loop's wait ends."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

import pytest

from pgembed_django import conf
from pgembed_django.listener import Listener
from pgembed_django.worker.rest import Rest

LONG_SECONDS = 60.0
"""A wait that ends only because of its time-out takes this long: longer than any pause of ours."""


@pytest.fixture
def rest() -> Iterator[Rest]:
    rest = Rest(conf.current())
    yield rest
    rest.close()


def is_heard(rest: Rest) -> bool:
    """Return whether a wait ends before its time-out."""
    started = time.monotonic()
    rest.wait(Listener([], using="default"), LONG_SECONDS)
    return time.monotonic() - started < LONG_SECONDS


def test_a_wake_ends_the_wait_that_follows_it_each_time(rest):
    for wakes in (1, 2, 1):
        for _ in range(wakes):
            rest.wake()

        assert is_heard(rest)


def test_no_result_of_several_threads_waits_for_a_time_out(rest):
    """Who finds that the loop is woken already sends nothing: the loop must look after that."""
    workers, each = 4, 2_000
    results: deque[threading.Semaphore] = deque()

    def work() -> None:
        collected = threading.Semaphore(0)
        for _ in range(each):
            results.append(collected)
            rest.wake()
            collected.acquire()

    for _ in range(workers):
        threading.Thread(target=work, daemon=True).start()
    seen = 0
    while seen < workers * each:
        assert is_heard(rest)
        while results:
            results.popleft().release()
            seen += 1
