"""Our worker's own loop, with handlers in place of reading and embedding texts."""

from __future__ import annotations

import time
from collections import deque
from queue import SimpleQueue
from threading import Thread
from typing import Any

from benchmarks.queue.handler import AT_ONCE, BATCH, Handler
from pgembed_django.pipeline import Pipeline
from pgembed_django.pipeline.units import Unit

HAND_IN_SECONDS = 0.01
"""How long a finished job waits at most, so that others can be completed with it."""


class HandlingPipeline(Pipeline):
    """Claims, holds, fences and completes jobs like a real pipeline, by the storing thread."""

    handler: Handler

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._wake = options["wake"]
        self._todo: SimpleQueue[Unit] = SimpleQueue()
        self._done: deque[Unit] = deque()
        self._handed_in_at = 0.0
        for _ in range(AT_ONCE):
            Thread(target=self._work, daemon=True).start()

    def step(self, *, claim: bool = True) -> bool:
        """Settle the jobs that have been handled, and claim the next ones."""
        self._hand_in()
        moved = self.storing.step()
        self.holding.end_jobs()  # none: all that is handled completes
        if claim and self._todo.qsize() < BATCH:
            self.live.read_if_old()
            claims = self.claiming.claim_up_to(BATCH)
            self.claiming.has_more = len(claims) >= BATCH
            now = time.monotonic()
            units = [Unit(one, self.live.specs[one.spec], now) for one in claims]
            self.holding.add(units)
            # A handler that does nothing is called directly, as in the bare loop.
            take_on = self._todo.put if self.handler.sleeps else self._handle
            for unit in units:
                take_on(unit)
            moved |= bool(units)
        return moved

    def _work(self) -> None:
        while True:
            self._handle(self._todo.get())
            if len(self._done) >= BATCH or len(self._done) == len(self.holding.units):
                self._wake()

    def _handle(self, unit: Unit) -> None:
        self.handler(unit.claim.source_pk)
        self._done.append(unit)

    def _hand_in(self) -> None:
        """Hand the jobs over to be completed. They have nothing to store."""
        waited = time.monotonic() - self._handed_in_at
        if not self._done or (len(self._done) < BATCH and waited < HAND_IN_SECONDS):
            return
        self._handed_in_at = time.monotonic()
        for _ in range(len(self._done)):
            unit = self._done.popleft()
            unit.is_planned = True
            unit.plan_for(self.live.of(unit.spec))
            self.holding.look_at(unit)
