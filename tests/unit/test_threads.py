"""Executors whose process can start no more threads."""

from __future__ import annotations

import pytest

from pgembed_django.core.threads import Threads
from pgembed_django.exceptions import ProviderUnavailable
from tests.conftest import no_more_threads


def test_a_process_without_room_for_a_thread_is_an_outage():
    threads = Threads(2, name="tested")

    with no_more_threads():
        refused = threads.submit(int)

    with pytest.raises(ProviderUnavailable, match="no thread"):
        refused.result(timeout=10)
    assert threads.submit(int, "1").result(timeout=10) == 1
    threads.shutdown()


def test_a_thread_that_cannot_be_started_leaves_its_work_to_the_others():
    threads = Threads(2, name="tested")
    first = threads.submit(int, "1")

    with no_more_threads():
        second = threads.submit(int, "2")

    assert (first.result(timeout=10), second.result(timeout=10)) == (1, 2)
    threads.shutdown()
