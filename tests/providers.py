"""Providers that fail in ways that a test chooses."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pgembed_django.exceptions import InputRefused, ProviderUnavailable
from pgembed_django.executors import Answer, Facts, Model, Place, Recipe
from pgembed_django.providers.answers import Vectors
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.providers.local import LocalProvider


class ExitingProvider(DeterministicProvider):
    """Takes its process along at a text with "poison", without a word.

    Notes each batch as a line of JSON first, in the file that its option names.
    """

    def __init__(self, *, notes: str, **common: Any) -> None:
        super().__init__(**common)
        self._notes = Path(notes)

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        with self._notes.open("a") as notes:
            notes.write(json.dumps(list(texts)) + "\n")
        if any("poison" in text for text in texts):
            os._exit(13)
        return super().embed_batch(texts)


class Abacus(Model):
    """A model that is loaded in no time, and whose vectors carry no meaning."""

    facts = Facts(hardware="abacus")

    def __init__(self, dimensions: int, beads: int) -> None:
        self._dimensions = dimensions
        self._beads = beads

    def compute(self, prepared: Sequence[str]) -> Answer:
        seeds = [[self._beads, *text.encode()] for text in prepared]
        rows = [np.random.default_rng(seed).standard_normal(self._dimensions) for seed in seeds]
        return Answer(np.array(rows, dtype=np.float32))


def load_abacus(*, dimensions: int, beads: int, place: Place) -> Abacus:
    return Abacus(dimensions, beads)


class AbacusProvider(LocalProvider):
    """Runs an ``Abacus`` in process. Other ``beads`` make other vectors."""

    space_options = (*LocalProvider.space_options, "beads")

    def __init__(self, *, beads: int = 0, **common: Any) -> None:
        super().__init__(**common)
        self.beads = beads

    @cached_property
    def recipe(self) -> Recipe:
        arguments = {"dimensions": self.dimensions, "beads": self.beads}
        return Recipe(load="tests.providers.load_abacus", model=self.model, arguments=arguments)


def abacus(kind: str = "InProcess", *, options: Any = None, **executor: Any) -> dict[str, Any]:
    """Declare it, with its options, and those of its executor."""
    return {
        "BACKEND": "tests.providers.AbacusProvider",
        "MODEL": "abacus",
        "DIMENSIONS": 64,
        "OPTIONS": options or {},
        "EXECUTOR": {"BACKEND": f"pgembed_django.executors.{kind}", **executor},
    }


class PickyProvider(DeterministicProvider):
    """Refuses texts longer than an option allows, and those with "secret"."""

    def __init__(self, *, max_characters: int = 1000, **common: Any) -> None:
        super().__init__(**common)
        self._max_characters = max_characters

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        for text in texts:
            if "secret" in text:
                raise InputRefused(f"This text is not allowed: {text[:10]!r}")
            if len(text) > self._max_characters:
                raise InputRefused(
                    f"This text has {len(text)} characters, at most {self._max_characters} are "
                    "allowed."
                )
        return super().embed_batch(texts)


class Moody(DeterministicProvider):
    """Some models are down, and some refuse a text."""

    down: ClassVar[set[str]] = set()
    fatal: ClassVar[dict[str, str]] = {}
    """At this text the model goes down."""
    refusing: ClassVar[dict[str, str]] = {}
    asked: ClassVar[list[tuple[str, str]]] = []

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        if any(self.model in Moody.fatal and Moody.fatal[self.model] in text for text in texts):
            Moody.down = {*Moody.down, self.model}
        if self.model in Moody.down:
            raise ProviderUnavailable("connection refused")
        if any(self._refuses(text) for text in texts):
            raise InputRefused("too long")
        Moody.asked += [(self.model, text) for text in texts if text != self.health_check_text]
        return super().embed_batch(texts)

    def _refuses(self, text: str) -> bool:
        return self.model in Moody.refusing and Moody.refusing[self.model] in text


class PlayedLocalProvider(LocalProvider):
    """Has its model run by an executor: see ``tests.played.models``."""

    def __init__(self, *, fifo: str = "", **common: Any) -> None:
        super().__init__(**common)
        self._fifo = fifo

    @cached_property
    def recipe(self) -> Recipe:
        arguments = {"fifo": self._fifo}
        return Recipe(load="tests.played.models.load", model=self.model, arguments=arguments)
