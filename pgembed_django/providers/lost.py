"""A placeholder for a provider that this process can no longer build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgembed_django.exceptions import ProviderMisconfigured
from pgembed_django.providers.answers import Vectors
from pgembed_django.providers.base import Provider


class LostProvider(Provider):
    """A provider whose class, package or option is gone. Every request raises the reason."""

    def __init__(self, *, reason: str, space_id: int, **common: Any) -> None:
        super().__init__(**common)
        self.space_id = space_id
        self._reason = reason

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        raise ProviderMisconfigured(self._reason)

    def warm_up(self) -> None:
        raise ProviderMisconfigured(self._reason)
