"""Run a model in this process, in the thread that calls it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pgembed_django.core.threads import fork_safe_lock
from pgembed_django.executors.base import Executor, Facts, Model, Place, Recipe, Status, Task


class InProcess(Executor):
    """Loads the model into this process. It computes one call at a time, and shares Python's lock.

    Best for models that are done in microseconds, and where no further process is wanted.
    """

    slots = 2  # one to compute, and one to come next

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self._loading = fork_safe_lock()
        self._computing = fork_safe_lock()
        self._model: Model | None = None
        self._facts = Facts()

    def start(self) -> Facts:
        self._loaded()
        return self._facts

    def call(
        self,
        task: Task,
        texts: Sequence[Any],
        *,
        is_query: bool = False,
        timeout_seconds: float | None = None,
    ) -> Any:
        model = self._loaded()
        try:
            # With the lock for all stages: a library's threads do not survive a fork.
            with self._computing:
                if task == "count":
                    return model.count(texts)
                return model.finish(model.compute(model.prepare(texts)))
        except Exception as error:  # noqa: BLE001 - of the model's libraries
            raise self.recipe.failed(error) from None

    def status(self) -> Status:
        facts = self._facts
        return Status(
            kind=type(self).__name__,
            running=int(self._model is not None),
            devices=() if self._model is None else (facts.hardware or facts.device,),
            texts_per_second=self.rate.per_second(),
            start_seconds=facts.start_seconds,
        )

    def _loaded(self) -> Model:
        with self._loading:
            if self._model is None:
                started = time.monotonic()
                self._model = self.recipe.loaded(Place())
                seconds = time.monotonic() - started
                self._facts = replace(self._model.facts, start_seconds=seconds)
            return self._model
