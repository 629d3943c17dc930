"""A model that needs no device: it holds Python's lock to tokenize, and rests while it computes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from pgembed_django.executors import Answer, Facts, Model, OwnProcess, Place, Recipe
from pgembed_django.providers.local import LocalProvider


class StandInProvider(LocalProvider):
    """Embeds with a ``StandIn``, in a process of its own."""

    executor_class = OwnProcess

    def __init__(
        self, *, tokenizing_seconds: float, word_seconds: float, request: int, **common: Any
    ) -> None:
        super().__init__(**common)
        self._arguments = {
            "width": self.dimensions,
            "tokenizing_seconds": tokenizing_seconds,
            "word_seconds": word_seconds,
            "request": request,
        }

    @cached_property
    def recipe(self) -> Recipe:
        return Recipe(load=f"{__name__}.load", model=self.model, arguments=self._arguments)


def load(
    *, width: int, tokenizing_seconds: float, word_seconds: float, request: int, place: Place
) -> Model:
    """Return a stand-in. Those of several places do not disturb each other."""
    return StandIn(width, tokenizing_seconds, word_seconds, request)


class StandIn(Model):
    """Takes ``tokenizing_seconds`` of a core per text, and the device's ``word_seconds``."""

    def __init__(
        self, width: int, tokenizing_seconds: float, word_seconds: float, request: int
    ) -> None:
        self._width = width
        self._tokenizing_seconds = tokenizing_seconds
        self._word_seconds = word_seconds
        self._never = threading.Event()
        self.facts = Facts(hardware="a stand-in", batch_size=request)

    def prepare(self, texts: Sequence[str]) -> tuple[int, int]:
        """Return how many texts and words there are."""
        # This thread's own time, which stands still while others have the core or Python's lock.
        until = time.thread_time() + self._tokenizing_seconds * len(texts)
        while time.thread_time() < until:
            pass
        return len(texts), sum(len(text.split()) for text in texts)

    def compute(self, prepared: tuple[int, int]) -> int:
        """Rest for as long as a device would compute."""
        texts, words = prepared
        self._never.wait(self._word_seconds * words)
        return texts

    def finish(self, computed: int) -> Answer:
        """Return equal vectors."""
        return Answer(np.full((computed, self._width), self._width**-0.5, dtype=np.float32))
