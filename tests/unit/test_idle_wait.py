"""How the loop's wait ends."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from pgembed_django import conf
from pgembed_django.queue.listener import IdleWait, Listener

HOUR = 3600.0
"""A wait that nothing but its time-out ends."""


@pytest.fixture
def idle() -> Iterator[IdleWait]:
    idle = IdleWait(Listener([], using="default"), conf.current())
    yield idle
    idle.close()


def ends(call: Callable[[], object]) -> bool:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


def test_a_wake_ends_the_wait_that_follows_it_each_time(idle):
    for wakes in (1, 2, 1):
        for _ in range(wakes):
            idle.wake()

        assert ends(lambda: idle.wait(HOUR))


def test_no_result_of_several_threads_waits_for_a_time_out(idle):
    """Who finds that the loop is woken already sends nothing: the loop must look after that."""
    workers, each = 4, 2_000
    results: deque[threading.Semaphore] = deque()

    def work() -> None:
        collected = threading.Semaphore(0)
        for _ in range(each):
            results.append(collected)
            idle.wake()
            collected.acquire()

    def loop() -> None:
        seen = 0
        while seen < workers * each:
            idle.wait(HOUR)
            while results:
                results.popleft().release()
                seen += 1

    for _ in range(workers):
        threading.Thread(target=work, daemon=True).start()
    assert ends(loop)
