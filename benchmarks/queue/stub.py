"""The benchmark's handler in our worker, written against the protocol alone."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Thread

from benchmarks.queue.handler import AT_ONCE, BATCH
from benchmarks.queue.handler import Handler as Call
from pgembed_django.queue.handler import Handler, Setting
from pgembed_django.queue.jobs import Claim

HAND_IN_SECONDS = 0.01
"""How long a finished job waits at most, so that others can be completed with it."""


class StubHandler(Handler):
    """Calls a function for each job, in threads. There is nothing to write."""

    def __init__(self, spec: str, call: Call) -> None:
        self.specs = {spec: 0}
        self._call = call
        self._todo: SimpleQueue[Claim] = SimpleQueue()
        self._done: deque[Claim] = deque()
        self._handed_in_at = 0.0

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self._wake = setting.wake
        for _ in range(AT_ONCE):
            Thread(target=self._work, daemon=True).start()

    @property
    def room(self) -> int:
        return BATCH if self._todo.qsize() < BATCH else 0

    def take(self, claims: Sequence[Claim]) -> None:
        # A function that does nothing is called directly, as in the bare loop.
        take_on = self._todo.put if self._call.sleeps else self._handle
        for claim in claims:
            take_on(claim)

    def collect(self) -> bool:
        waited = time.monotonic() - self._handed_in_at
        if not self._done or (len(self._done) < BATCH and waited < HAND_IN_SECONDS):
            return False
        self._handed_in_at = time.monotonic()
        for _ in range(len(self._done)):
            self.held.finish(self._done.popleft())
        return True

    @property
    def is_waiting(self) -> bool:
        return bool(self.held.jobs)

    def _work(self) -> None:
        while True:
            self._handle(self._todo.get())
            if len(self._done) >= BATCH or len(self._done) == len(self.held.jobs):
                self._wake()

    def _handle(self, claim: Claim) -> None:
        self._call(claim.source_pk)
        self._done.append(claim)
