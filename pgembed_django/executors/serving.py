"""What a process of ``own_process`` runs: it loads a model, and computes what it is sent.

A Ray actor uses the same stages.

Three threads, each with one stage of a call at a time: while the device computes one batch, the
next is tokenized, and the last one is sent. The process ends with the one that started it.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from queue import PriorityQueue, SimpleQueue
from typing import Any, Final

from pgembed_django.executors.base import Model, Place, Recipe, Task

BROKEN: Final = 70
"""The exit status after an error that has made the device useless, as ``EX_SOFTWARE``."""

LOOK_SECONDS: Final = 1.0
"""How often to look whether the process that started this one has ended."""

SWITCH_SECONDS: Final = 0.0005
"""How soon a thread gets Python's lock from one that tokenizes: the device waits for it."""


def main(number: int, parent: int) -> None:
    """Serve the process ``parent`` over its end of a pipe, until it ends."""
    pipe = opened(number, parent)
    recipe: Recipe
    place: Place
    recipe, place = pickle.loads(pipe.recv_bytes())  # noqa: S301 - our own
    try:
        model = recipe.loaded(place)
    except Exception as error:  # noqa: BLE001 - sent, and raised there
        pipe.send_bytes(pickle.dumps(("failed", recipe.failed(error))))
        return
    pipe.send_bytes(pickle.dumps(("ready", model.facts)))
    stages = Stages(model, recipe, Sender(pipe).send)
    in_thread(lambda: receive(pipe, stages.take))
    stages.run()


def opened(number: int, parent: int) -> Connection:
    """Prepare this process for serving. Return its end of the pipe."""
    # The worker decides when it ends. A terminal or a supervisor may signal all processes.
    ignore_signals()
    prepare_threads()
    os.set_inheritable(number, False)
    in_thread(lambda: _end_with(parent))
    return Connection(number)


def ignore_signals() -> None:
    """Leave signals that end a worker to the worker. Started programs get them all the same."""
    for ended_by in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ended_by, lambda *_: None)


def prepare_threads() -> None:
    """Let threads run beside each other. Call it before the model's library is loaded."""
    # Or else the library ends its own parallelism once it has seen a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    sys.setswitchinterval(SWITCH_SECONDS)


def receive(pipe: Connection, take: Callable[..., None]) -> None:
    """Hand on what comes over the pipe: number, task, texts, and whether it is a query."""
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)  # whatever the model is at
        take(*pickle.loads(message))  # noqa: S301 - our own


class Sender:
    """Sends answers from several threads."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, number: int | None, outcome: object) -> None:
        """Send the outcome of a call, which may be an error."""
        message = pickle.dumps((number, outcome), protocol=pickle.HIGHEST_PROTOCOL)
        try:
            with self._lock:
                self._pipe.send_bytes(message)
        except OSError:
            os._exit(0)


class Stages:
    """The stages of calls. Of those that wait for the device, queries come first.

    ``send`` gets the key of each call with its outcome, in the thread of its last stage.
    """

    def __init__(self, model: Model, recipe: Recipe, send: Callable[[Any, object], None]) -> None:
        self._model = model
        self._recipe = recipe
        self._send = send
        self._tick = itertools.count()
        self._prepared: PriorityQueue[tuple[bool, int, Any, Any]] = PriorityQueue()
        self._computed: SimpleQueue[tuple[Any, Any]] = SimpleQueue()

    def run(self) -> None:
        """Compute for good. This thread has the device."""
        in_thread(self._finish_all)
        while True:
            _, _, key, prepared = self._prepared.get()
            self._stage(key, self._compute, key, prepared)

    def take(self, key: Any, task: Task, texts: Sequence[Any], is_query: bool) -> None:
        """Begin a call with its first stage. The same thread takes all calls."""
        stage = self._count if task == "count" else self._prepare
        self._stage(key, stage, key, texts, is_query)

    def _finish_all(self) -> None:
        while True:
            key, computed = self._computed.get()
            self._stage(key, self._answer, key, computed)

    def _count(self, key: Any, texts: Sequence[Any], _: bool) -> None:
        self._send(key, self._model.count(texts))

    def _prepare(self, key: Any, texts: Sequence[Any], is_query: bool) -> None:
        prepared = self._model.prepare(texts)
        self._prepared.put((not is_query, next(self._tick), key, prepared))

    def _compute(self, key: Any, prepared: Any) -> None:
        self._computed.put((key, self._model.compute(prepared)))

    def _answer(self, key: Any, computed: Any) -> None:
        self._send(key, self._model.finish(computed))

    def _stage(self, key: Any, stage: Callable[..., None], *given: Any) -> None:
        """Run one stage. If it fails, so does its call."""
        try:
            stage(*given)
        except Exception as error:  # noqa: BLE001 - sent, and raised there
            if self._model.is_broken_by(error):
                os._exit(BROKEN)
            self._send(key, self._recipe.failed(error))


def _end_with(parent: int) -> None:
    """End with another process, also while the thread that reads is at a text for good."""
    ending = threading.Event()
    while os.getppid() == parent:
        ending.wait(LOOK_SECONDS)
    os._exit(0)


def in_thread(target: Callable[[], None]) -> None:
    """Run something in a thread that does not keep the process alive."""
    threading.Thread(target=target, daemon=True).start()
