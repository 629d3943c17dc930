"""Executors, with real processes. What they run has no weights: see ``tests.played.models``."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgembed_django import exceptions
from pgembed_django.exceptions import (
    ProviderError,
    ProviderLost,
    ProviderMisconfigured,
    ProviderTimeout,
    ProviderUnavailable,
)
from pgembed_django.executors import Executor, InProcess, OwnProcess, Recipe, shared
from pgembed_django.executors.own_process import DEPTH, _Call

ROOT = Path(__file__).parents[2]

EITHER = pytest.mark.parametrize("kind", [InProcess, OwnProcess])


def recipe(**arguments: Any) -> Recipe:
    return Recipe(load="tests.played.models.load", model="played", arguments=arguments)


@contextmanager
def started(kind: type[Executor] = OwnProcess, **options: Any) -> Iterator[Executor]:
    executor = kind(recipe(), **options)
    try:
        executor.start()
        yield executor
    finally:
        executor.close()


def send(executor: OwnProcess, text: str, *, is_query: bool = False) -> Future[Any]:
    """Send a call, and do not wait for its answer."""
    call = _Call("compute", [text], is_query)
    executor._crew.take(call)
    return call.answer


def facts_of(answer: Any) -> tuple[int, int, int]:
    """Return which process has made an answer, when, and its place."""
    pid, when, index, _ = answer.values[0].astype(int).tolist()
    return pid, when, index


def fill(executor: OwnProcess, fifo: Path) -> list[Future[Any]]:
    """Send a process as many calls as it takes. The first ends once the FIFO is written to."""
    return [send(executor, text) for text in (f"wait {fifo}", *["one"] * (DEPTH - 1))]


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@pytest.fixture
def other_fifo(tmp_path: Path) -> Path:
    path = tmp_path / "other"
    os.mkfifo(path)
    return path


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended, which need not be a child of this one."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([process], [], [], 60)[0], f"{pid} goes on"
    os.close(process)


@EITHER
def test_an_executor_computes_and_counts(kind: type[Executor]):
    with started(kind) as executor:
        answer = executor.compute(["one", "two"])
        assert answer.values.shape == (2, 4)
        assert answer.values.dtype == np.float32
        assert (facts_of(answer)[0] == os.getpid()) is (kind is InProcess)
        assert executor.count(["one two", "three"]) == [2, 1]


@EITHER
def test_a_model_that_fails_says_what_but_not_the_text(kind: type[Executor]):
    with started(kind) as executor:
        with pytest.raises(ProviderError, match=r"^The model 'played' failed with ValueError\.$"):
            executor.compute(["fail"])
        assert executor.compute(["fine"])


@EITHER
def test_a_model_that_cannot_be_loaded_says_why(kind: type[Executor]):
    executor = kind(recipe(fault="no such file"))
    for _ in range(2):  # it is tried again
        with pytest.raises(ProviderMisconfigured, match="'played' cannot be loaded: OSError: no s"):
            executor.compute(["one"])
    executor.close()


def test_a_process_that_dies_while_it_loads_blames_no_text():
    executor = OwnProcess(recipe(fault="exit"))
    with pytest.raises(ProviderUnavailable, match="'played' ended with status 13") as raised:
        executor.compute(["one"])
    assert not isinstance(raised.value, ProviderLost)
    executor.close()


@pytest.mark.parametrize(
    ("text", "status"), [("exit", 13), ("break", 70)], ids=["dies", "breaks its device"]
)
def test_a_process_that_a_text_ends_is_started_again(text: str, status: int):
    with started() as executor:
        first, _, _ = facts_of(executor.compute(["one"]))
        with pytest.raises(ProviderLost, match=f"ended with status {status}"):
            executor.compute([text])
        second, _, _ = facts_of(executor.compute(["one"]))
        assert second != first


def test_a_killed_process_takes_along_what_it_had_and_no_more(fifo: Path):
    with started() as executor:
        pid, _, _ = facts_of(executor.compute(["one"]))
        had = fill(executor, fifo)
        waiting = send(executor, "two")

        os.kill(pid, signal.SIGKILL)

        for call in had:
            assert isinstance(call.exception(60), ProviderLost)
            assert "for want of memory" in str(call.exception())
        assert facts_of(waiting.result(60))[0] != pid


def test_a_process_that_dies_takes_nothing_of_the_others_along(fifo: Path, other_fifo: Path):
    with started(processes=2) as executor:
        spared = fill(executor, fifo)
        second, _, _ = facts_of(send(executor, "one").result(60))
        lost = fill(executor, other_fifo)

        os.kill(second, signal.SIGKILL)

        for call in lost:
            assert isinstance(call.exception(60), ProviderLost)
        fifo.write_bytes(b"")
        assert all(facts_of(call.result(60))[0] != second for call in spared)


def test_more_processes_start_when_calls_wait_and_no_sooner(fifo: Path):
    with started(processes=2) as executor:
        assert executor.slots == 2 * DEPTH
        blocked = fill(executor, fifo)
        assert executor.status().running == 1

        other = send(executor, "one").result(60)

        assert executor.status().running == 2
        assert executor.status().queued == DEPTH
        fifo.write_bytes(b"")
        pid, _, place = facts_of(blocked[0].result(60))
        assert {pid, place}.isdisjoint(facts_of(other)[::2])


def test_a_query_is_computed_before_batches_that_wait(fifo: Path):
    with started() as executor:
        blocked = send(executor, f"wait {fifo}")
        with fifo.open("wb"):  # by now it is computed
            batch = send(executor, "batch")
            query = send(executor, "query", is_query=True)
            executor.call("count", ["one"], is_query=True)  # by now the query is tokenized

        order = [facts_of(call.result(60))[1] for call in (blocked, query, batch)]
        assert order == [1, 2, 3]


def test_a_search_does_not_wait_for_longer_than_it_wants_to(fifo: Path):
    with started() as executor:
        blocked = send(executor, f"wait {fifo}")
        with (
            fifo.open("wb"),  # by now it is computed
            pytest.raises(ProviderTimeout, match=r"'played' did not answer within 0.01 s"),
        ):
            executor.compute(["query"], is_query=True, timeout_seconds=0.01)

        assert blocked.result(60)
        assert executor.compute(["one"])


def test_what_nobody_refers_to_ends():
    executor = shared(OwnProcess, recipe(), {})
    assert shared(OwnProcess, recipe(), {}) is executor
    pid, _, _ = facts_of(executor.compute(["one"]))

    del executor
    gc.collect()

    wait_for_end(pid)


STARTS = """
import sys
from pgembed_django.executors import OwnProcess, Recipe

executor = OwnProcess(Recipe(load="tests.played.models.load", model="played"))
print(int(executor.compute(["one"]).values[0][0]), flush=True)
executor.call("compute", [sys.argv[1]])
"""


@pytest.mark.parametrize("at", ["wait", "tokenize"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_ends_with_the_one_that_started_it_whatever_it_is_at(
    fifo: Path, number: signal.Signals, at: str
):
    command = [sys.executable, "-c", STARTS, f"{at} {fifo}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        with fifo.open("wb"):  # it is at it
            parent.send_signal(number)
            wait_for_end(pid)


FORKS_AND_ENDS = """
import os
from pgembed_django.executors import OwnProcess, Recipe

executor = OwnProcess(Recipe(load="tests.played.models.load", model="played"))
pid = int(executor.compute(["one"]).values[0][0])
if not os.fork():
    os.read(0, 1)  # it has a copy of all that was open
    os._exit(0)
print(pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_process_ends_though_a_forked_one_lives_on():
    command = [sys.executable, "-c", FORKS_AND_ENDS]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_for_end(pid)


FORKS = """
import os
import sys
from threading import Thread
from pgembed_django.executors import OwnProcess, Recipe

fifo = sys.argv[1]
executor = OwnProcess(Recipe(load="tests.played.models.load", model="played"))
ours = int(executor.compute(["one"]).values[0][0])
Thread(target=executor.compute, args=[[f"wait {fifo}"]], daemon=True).start()
with open(fifo, "wb"):
    child = os.fork()
theirs = int(executor.compute(["one"]).values[0][0])
if not child:
    os._exit(int(theirs == ours))
assert theirs == ours
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_starts_one_of_its_own(fifo: Path):
    command = [sys.executable, "-W", "error", "-W", "ignore:This process", "-c", FORKS, str(fifo)]
    done = subprocess.run(command, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("name", exceptions.__all__)
def test_errors_pass_from_one_process_to_another(name: str):
    error = getattr(exceptions, name)("what happened")
    if isinstance(error, ProviderUnavailable):
        error = type(error)("what happened", retry_after_seconds=3)

    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
