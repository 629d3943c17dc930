"""A provider for worker processes that a test starts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pgembed_django.exceptions import InputRefused
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.providers.vectors import Vectors


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
