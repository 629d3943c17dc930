"""What a process of ``own_process`` runs: it loads a model, and computes what it is sent.

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

from pgembed_django.executors.base import Model, Place, Recipe

BROKEN: Final = 70
"""The exit status after an error that has made the device useless, as ``EX_SOFTWARE``."""

LOOK_SECONDS: Final = 1.0
"""How often to look whether the process that started this one has ended."""

SWITCH_SECONDS: Final = 0.0005
"""How soon a thread gets Python's lock from one that tokenizes: the device waits for it."""


def main(number: int, parent: int) -> None:
    """Serve the process ``parent`` over its end of a pipe, until it ends."""
    # The worker decides when it ends. A terminal or a supervisor may signal all processes.
    for ended_by in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ended_by, lambda *_: None)
    # Or else the library ends its own parallelism once it has seen a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    sys.setswitchinterval(SWITCH_SECONDS)
    os.set_inheritable(number, False)
    pipe = Connection(number)
    _in_thread(lambda: _end_with(parent))
    recipe: Recipe
    place: Place
    recipe, place = pickle.loads(pipe.recv_bytes())  # noqa: S301 - our own
    try:
        model = recipe.loaded(place)
    except Exception as error:  # noqa: BLE001 - sent, and raised there
        pipe.send_bytes(pickle.dumps(("failed", recipe.failed(error))))
        return
    pipe.send_bytes(pickle.dumps(("ready", model.facts)))
    _Stages(model, recipe, pipe).run()


class _Stages:
    """The stages of calls. Of those that wait for the device, queries come first."""

    def __init__(self, model: Model, recipe: Recipe, pipe: Connection) -> None:
        self._model = model
        self._recipe = recipe
        self._pipe = pipe
        self._sending = threading.Lock()
        self._tick = itertools.count()
        self._prepared: PriorityQueue[tuple[bool, int, int, Any]] = PriorityQueue()
        self._computed: SimpleQueue[tuple[int, Any]] = SimpleQueue()

    def run(self) -> None:
        _in_thread(self._receive)
        _in_thread(self._finish)
        while True:
            _, _, number, prepared = self._prepared.get()
            self._stage(number, self._compute, number, prepared)

    def _receive(self) -> None:
        while True:
            try:
                message = self._pipe.recv_bytes()
            except (EOFError, OSError):
                os._exit(0)  # whatever the model is at
            number, task, texts, is_query = pickle.loads(message)  # noqa: S301 - our own
            stage = self._count if task == "count" else self._prepare
            self._stage(number, stage, number, texts, is_query)

    def _finish(self) -> None:
        while True:
            number, computed = self._computed.get()
            self._stage(number, self._answer, number, computed)

    def _count(self, number: int, texts: Sequence[Any], _: bool) -> None:
        self._send(number, self._model.count(texts))

    def _prepare(self, number: int, texts: Sequence[Any], is_query: bool) -> None:
        prepared = self._model.prepare(texts)
        self._prepared.put((not is_query, next(self._tick), number, prepared))

    def _compute(self, number: int, prepared: Any) -> None:
        self._computed.put((number, self._model.compute(prepared)))

    def _answer(self, number: int, computed: Any) -> None:
        self._send(number, self._model.finish(computed))

    def _stage(self, number: int, stage: Callable[..., None], *given: Any) -> None:
        """Run one stage. If it fails, so does its call."""
        try:
            stage(*given)
        except (BrokenPipeError, ConnectionError):
            os._exit(0)
        except Exception as error:  # noqa: BLE001 - sent, and raised there
            if self._model.is_broken_by(error):
                os._exit(BROKEN)
            self._send(number, self._recipe.failed(error))

    def _send(self, number: int, outcome: object) -> None:
        message = pickle.dumps((number, outcome), protocol=pickle.HIGHEST_PROTOCOL)
        with self._sending:
            self._pipe.send_bytes(message)


def _end_with(parent: int) -> None:
    """End with another process. Its end of the pipe may live on in a process that it has forked."""
    ending = threading.Event()
    while os.getppid() == parent:
        ending.wait(LOOK_SECONDS)
    os._exit(0)


def _in_thread(target: Callable[[], None]) -> None:
    threading.Thread(target=target, daemon=True).start()
