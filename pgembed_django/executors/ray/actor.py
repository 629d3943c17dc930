"""What runs in the cluster: an actor with a model. All relays with the same plan share it."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from pgembed_django import __version__
from pgembed_django.exceptions import ProviderError
from pgembed_django.executors import serving
from pgembed_django.executors.base import Facts, Place, Recipe, Task

LOOK_SECONDS: Final = 2.0
"""How often it looks whether anybody still needs it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which actors there are to be."""

    recipe: Recipe
    address: str | None
    actors: int
    cpus: float | None
    gpus: float
    start_seconds: float
    unused_seconds: float

    def name_of(self, index: int) -> str:
        """Return the name of an actor. Workers with the same recipe share it."""
        arguments = sorted(self.recipe.arguments.items())
        # With the version: a newer one may call what an actor of an older one does not have.
        key = repr((self.recipe.load, arguments, self.cpus, self.gpus, __version__))
        return f"{hashlib.sha256(key.encode()).hexdigest()[:16]}-{index}"

    @property
    def cluster(self) -> str:
        """What messages call the cluster."""
        return f"the Ray cluster at {self.address}" if self.address else "the local Ray cluster"


class ModelActor:
    """A model in a process of the cluster. It ends itself once nobody needs it."""

    def __init__(self, plan: Plan) -> None:
        self._recipe = plan.recipe
        self._unused_seconds = plan.unused_seconds
        cores = os.cpu_count() or 1
        # Its index is always 0, since Ray shows it no devices but its own.
        self._place = Place(0, max(1, int(cores / plan.cpus)) if plan.cpus else plan.actors)
        self._stages: serving.Stages | None = None
        self._taking = ThreadPoolExecutor(1)
        self._facts: Facts | None = None
        self._last_needed = time.monotonic()
        self._in_progress = 0
        """How many calls it works on. Loading a model may take longer than it may be unused."""
        serving.prepare_threads()
        serving.in_thread(self._end_if_unused)

    @cached_property
    def _loading(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def touch(self) -> None:
        """Note that it is needed."""
        self._last_needed = time.monotonic()

    async def start(self) -> Facts | ProviderError:
        """Return the model's facts. Loads it if it is not loaded."""
        async with self._needed(), self._loading:
            if self._facts is None:
                started = time.monotonic()
                try:
                    model = await asyncio.to_thread(self._recipe.loaded, self._place)
                except ProviderError as error:
                    return error
                self._stages = serving.Stages(model, self._recipe, _settle)
                serving.in_thread(self._stages.run)
                self._facts = replace(model.facts, start_seconds=time.monotonic() - started)
            return self._facts

    async def call(self, task: Task, texts: Sequence[Any], is_query: bool) -> Any:
        """Return the outcome of a call. An error is returned, too: raised, it would be wrapped."""
        found = await self.start()
        if isinstance(found, ProviderError) or self._stages is None:
            return found
        answer: Future[Any] = Future()
        async with self._needed():
            self._taking.submit(self._stages.take, answer, task, texts, is_query)
            return await asyncio.wrap_future(answer)

    @asynccontextmanager
    async def _needed(self) -> AsyncIterator[None]:
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1
            await self.touch()

    def _end_if_unused(self) -> None:
        ray = importlib.import_module("ray")
        looking = threading.Event()
        while self._in_progress or time.monotonic() - self._last_needed < self._unused_seconds:
            looking.wait(LOOK_SECONDS)
        # Whatever ends otherwise is started again.
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def _settle(answer: Future[Any], outcome: object) -> None:
    answer.set_result(outcome)
