"""A provider in process that is down, refuses or fails when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NoReturn

from pgembed_django.exceptions import InputRefused, ProviderError, ProviderUnavailable
from pgembed_django.providers.answers import Vectors
from pgembed_django.providers.deterministic import DeterministicProvider


class PlayedProvider(DeterministicProvider):
    """Notes what it embedded. Refuses "poison", fails at "trouble", and may be down.

    ``meanwhile`` is called in the thread that asks, before it answers.
    """

    embedded: ClassVar[list[str]] = []
    is_down: ClassVar[bool] = False
    meanwhile: ClassVar[Callable[[], object] | None] = None

    @classmethod
    def reset(cls) -> None:
        cls.embedded = []
        cls.is_down = False
        cls.meanwhile = None

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        if self.is_down:
            raise ProviderUnavailable("The server is down.")
        for text in texts:
            if "poison" in text:
                raise InputRefused("This text is poison.")
            if "trouble" in text:
                raise ProviderError("This text is trouble.")
        if type(self).meanwhile is not None:
            type(self).meanwhile()
        self.embedded.extend(texts)
        return super().embed_batch(texts)


class RaisingProvider(DeterministicProvider):
    """One of somebody's own, with an error of its own at whatever it is asked."""

    def embed_batch(self, texts: Sequence[str]) -> NoReturn:
        raise RuntimeError(f"out of memory at {texts}")

    def model_digest(self) -> NoReturn:
        raise ConnectionError("no answer")

    def warm_up(self) -> NoReturn:
        raise OSError("no such file")
