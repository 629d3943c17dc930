"""Run a model in processes of its own, one per device.

In the worker's process it would share Python's lock with claiming, planning and storing. A process
that dies is started again by the next call. Which text was to blame is found as after an outage of
a server.
"""

from __future__ import annotations

import heapq
import itertools
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe, spawn
from multiprocessing.connection import Connection
from typing import Any, ClassVar, Final

from pgembed_django import events
from pgembed_django.core.threads import OurThread
from pgembed_django.exceptions import (
    ProviderError,
    ProviderLost,
    ProviderTimeout,
    ProviderUnavailable,
)
from pgembed_django.executors.base import Executor, Facts, Place, Recipe, Status, Task

MAIN: Final = "import sys; from {} import main; main(int(sys.argv[1]), int(sys.argv[2]))"

DEPTH: Final = 3
"""How many calls a process has at once: one is tokenized, one computed, one sent."""

KILLED: Final = -9


class Processes(Executor):
    """Sends calls to processes.

    The first starts with the first call, the others when calls wait. They end when the executor is
    closed or not referred to any more, and with this process, however it ends.
    """

    def __init__(self, recipe: Recipe, crew: Crew) -> None:
        super().__init__(recipe)
        self._crew = crew
        weakref.finalize(self, crew.close)

    def start(self) -> Facts:
        if self._crew.facts is None:
            self.call("count", [])
        return self._crew.facts or Facts()

    def call(
        self,
        task: Task,
        texts: Sequence[Any],
        *,
        is_query: bool = False,
        timeout_seconds: float | None = None,
    ) -> Any:
        call = _Call(task, texts, is_query)
        self._crew.take(call)
        try:
            return call.answer.result(timeout_seconds)
        except TimeoutError:
            call.answer.cancel()
            raise ProviderTimeout(
                f"The model {self.recipe.model!r} did not answer within {timeout_seconds:g} s."
            ) from None

    def status(self) -> Status:
        return replace(
            self._crew.status(),
            kind=type(self).__name__,
            texts_per_second=self.rate.per_second(),
        )

    def close(self) -> None:
        self._crew.close()


class OwnProcess(Processes):
    """Loads the model into a process per device, or into PROCESSES of them."""

    def __init__(self, recipe: Recipe, *, processes: int | None = None) -> None:
        super().__init__(recipe, Crew(recipe, self.optional(self.whole, "PROCESSES", processes)))

    @property
    def slots(self) -> int:
        return self._crew.wanted * DEPTH


@dataclass(slots=True, eq=False)
class _Call:
    task: Task
    texts: Sequence[Any]
    is_query: bool
    answer: Future[Any] = field(default_factory=Future)


class Crew:
    """The processes of one executor, and the calls that wait for one of them."""

    def __init__(
        self,
        recipe: Recipe,
        processes: int | None,
        *,
        member: Callable[[Crew, Recipe, Place], Member] | None = None,
    ) -> None:
        self._recipe = recipe
        self._processes = processes
        self._member = member or Member
        self.facts: Facts | None = None
        self._begin()
        _crews.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._members: list[Member] = []
        self._numbers = itertools.count()
        self._waiting: list[tuple[bool, int, _Call]] = []
        self.is_closed = False

    @property
    def wanted(self) -> int:
        """How many processes it may have."""
        return self._processes or (self.facts.devices if self.facts else 1)

    def take(self, call: _Call) -> None:
        """Have a call computed. Its ``answer`` is set by another thread."""
        with self._lock:
            if self.is_closed:
                raise ProviderUnavailable(f"The model {self._recipe.model!r} was closed.")
            heapq.heappush(self._waiting, (not call.is_query, next(self._numbers), call))
            self._hand_out()

    def status(self) -> Status:
        """Return what it is at."""
        with self._lock:
            ready = [facts for member in self._members for facts in member.ready]
            return Status(
                kind="",
                running=len(ready),
                wanted=self.wanted,
                devices=[facts.hardware or facts.device for facts in ready],
                queued=len(self._waiting) + sum(len(one.calls) for one in self._members),
                start_seconds=self.facts.start_seconds if self.facts else 0.0,
            )

    def close(self) -> None:
        """Kill the processes. Does not wait for what they compute."""
        self.is_closed = True
        for member in [*self._members]:  # without the lock, which may wait for a frozen one
            member.kill()

    def forget(self) -> None:
        """Begin anew in a forked process: the others are not its children."""
        members = self._members
        self._begin()
        for member in members:
            member.disown()

    # Called by the members' threads

    def is_ready(self, member: Member, facts: Facts) -> None:
        """Note that a process has loaded the model."""
        with self._lock:
            member.facts = self.facts = facts
            self._hand_out()

    def answered(self, member: Member, number: int, outcome: object) -> None:
        """Hand an answer to its call."""
        with self._lock:
            call = member.calls.pop(number)
            self._hand_out()
        _settle(call, outcome)

    def ended(self, member: Member, error: ProviderUnavailable) -> None:
        """Fail the calls of a process that has ended. Start another one for those that wait."""
        with self._lock:
            self._members.remove(member)
            if member.facts and not self.is_closed:
                self._hand_out()
            else:
                self._fail_waiting(error)
        for call in member.calls.values():
            _settle(call, error)

    def _fail_waiting(self, error: ProviderUnavailable) -> None:
        """Fail the calls that wait, unless another process is there to take them."""
        if not self._members:
            for _, _, call in self._waiting:
                _settle(call, error)
            self._waiting.clear()

    def _hand_out(self) -> None:
        """Send waiting calls to processes that have room, and start one if all are busy."""
        while self._waiting:
            call = self._waiting[0][2]
            ready = [one for one in self._members if one.facts and one.has_room(call)]
            if not ready:
                break
            _, number, call = heapq.heappop(self._waiting)
            if not call.answer.cancelled():
                min(ready, key=lambda one: len(one.calls)).send(number, call)
        is_starting = any(one.facts is None for one in self._members)
        if self._waiting and not is_starting and len(self._members) < self.wanted:
            taken = {one.place.index for one in self._members}
            index = next(index for index in itertools.count() if index not in taken)
            try:
                place = Place(index, self.wanted)
                self._members.append(self._member(self, self._recipe, place))
            except (OSError, RuntimeError) as error:  # no more processes, or threads
                said = f"No process for the model {self._recipe.model!r} can be started: {error}"
                self._fail_waiting(ProviderUnavailable(said))


class Member:
    """One process, and the thread that takes its answers."""

    main: ClassVar[str] = "pgembed_django.executors.serving"
    """The module whose ``main`` it runs."""

    depth = DEPTH
    """How many calls it has at once, at most."""

    def __init__(self, crew: Crew, recipe: Recipe, place: Place) -> None:
        self.place = place
        self.facts: Facts | None = None
        """None: it is still loading the model."""
        self.ready: Sequence[Facts] = ()
        """What its models run on: one of its own, or those that it passes calls on to."""
        self.calls: dict[int, _Call] = {}
        """What it was sent, and has not answered."""
        self._crew = crew
        self._recipe = recipe
        self._started = time.monotonic()
        self._pipe, theirs = Pipe()
        number = theirs.fileno()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # Not sys.executable: in a process that embeds Python, that is another program.
        interpreter = os.fsdecode(spawn.get_executable())
        # S603: this very interpreter, and our own code.
        self._process = subprocess.Popen(  # noqa: S603
            [interpreter, "-c", MAIN.format(self.main), str(number), str(os.getpid())],
            env=environment,
            pass_fds=[number],
        )
        theirs.close()
        OurThread(target=self._run, name="pgembed-model", daemon=True).start()

    def has_room(self, call: _Call) -> bool:
        """Return whether it takes a call. A query need not wait for those that are not begun."""
        return len(self.calls) < self.depth + call.is_query

    def send(self, number: int, call: _Call) -> None:
        """Send a call. If the process has ended, the thread notices."""
        self.calls[number] = call
        message = (number, call.task, call.texts, call.is_query)
        with suppress(OSError):
            self._pipe.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    @property
    def order(self) -> object:
        """What the process is to serve. It can be pickled."""
        return self._recipe, self.place

    def outage(self, status: int) -> ProviderUnavailable:
        """Return what the end of the process means for its calls."""
        said = f"The process of the model {self._recipe.model!r} ended with status {status}."
        if status == KILLED:
            said += " Was it killed for want of memory?"
        # A text can only be to blame for the end of a process that had one.
        return ProviderLost(said) if self.facts else ProviderUnavailable(said)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def disown(self) -> None:
        """Let go of a process that is another's child."""
        self._process.returncode = 0  # or else it would be waited for
        self._pipe.close()

    def _run(self) -> None:
        pipe = self._pipe
        try:
            pipe.send_bytes(pickle.dumps(self.order))
            told, found = _received(pipe)
            if told == "failed":
                self._end(found)
                return
            seconds = time.monotonic() - self._started
            facts = replace(found, start_seconds=max(seconds, found.start_seconds))
            self.ready = [facts]
            self._crew.is_ready(self, facts)
            while True:
                number, outcome = _received(pipe)
                if number is None:
                    self.ready = outcome
                else:
                    self._crew.answered(self, number, outcome)
        except (EOFError, OSError):
            self._end(None)

    def _end(self, error: ProviderError | None) -> None:
        """Wait for the process's end. ``error``: why it could not load the model."""
        self._process.kill()
        status = self._process.wait()
        self._pipe.close()
        if isinstance(error, ProviderUnavailable):
            self._crew.ended(self, error)
            return
        outage = self.outage(status)
        if not self._crew.is_closed:
            events.tell(events.CHILD_DIED, pid=self._process.pid, error=str(outage))
        self._crew.ended(self, outage)


def _received(pipe: Connection) -> tuple[Any, Any]:
    received: tuple[Any, Any] = pickle.loads(pipe.recv_bytes())  # noqa: S301 - our own
    return received


def _settle(call: _Call, outcome: object) -> None:
    """Set a call's answer, unless nobody waits for it any more."""
    if call.answer.set_running_or_notify_cancel():
        if isinstance(outcome, BaseException):
            call.answer.set_exception(outcome)
        else:
            call.answer.set_result(outcome)


_crews: Final[weakref.WeakSet[Crew]] = weakref.WeakSet()


def _forget_all() -> None:
    for crew in [*_crews]:
        crew.forget()


os.register_at_fork(after_in_child=_forget_all)
