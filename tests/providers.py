"""A provider for worker processes that a test starts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
