"""A model without weights that every process loads alike, and its provider."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b

import numpy as np

from pgembed_django.executors import Answer, Facts, Model, Place, Recipe
from pgembed_django.providers.local import LocalProvider

WIDTH = 64

PID = "pid"
"""The text whose vector is the id of the process that embeds it, 64 times."""


class Bag(Model):
    """Hashes texts. One with "poison" takes the process along."""

    facts = Facts(hardware="bag")

    def compute(self, texts: Sequence[str]) -> Answer:
        if any("poison" in text for text in texts):
            os._exit(13)
        return Answer(np.array([self._vector(text) for text in texts], dtype=np.float32))

    def _vector(self, text: str) -> np.ndarray:
        if text == PID:
            return np.full(WIDTH, os.getpid())
        digest = blake2b(text.encode(), digest_size=WIDTH).digest()
        return np.frombuffer(digest, dtype=np.uint8) - 127.5


def load(*, place: Place, name: str) -> Model:
    return Bag()


class BagProvider(LocalProvider):
    @cached_property
    def recipe(self) -> Recipe:
        return recipe(self.model)


def recipe(name: str) -> Recipe:
    return Recipe(load=f"{__name__}.load", model=name, arguments={"name": name})
