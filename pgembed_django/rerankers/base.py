"""The public protocol of rerankers, which score passages for a query: what to subclass.

No database, no settings.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from pgembed_django.core.options import Options
from pgembed_django.exceptions import ProviderError, ProviderTimeout
from pgembed_django.providers import answers

BATCH_SIZE: Final = 32
"""The default of text-embeddings-inference, which refuses more (``--max-client-batch-size``)."""


class Reranker(Options, ABC):
    """One model of one server or library. Threads share it, so it must be thread-safe.

    A subclass implements ``rerank``. Its own options are keywords of ``__init__``, which passes
    all others to the base class.
    """

    quotes_no_text = False
    """Whether the messages of its errors never hold a part of a text."""

    def __init__(
        self,
        *,
        alias: str,
        model: str,
        timeout_seconds: float = 2.0,
        batch_size: int = BATCH_SIZE,
        max_characters: int = 2000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.alias = alias
        self.model = self.name("MODEL", model)
        self.timeout_seconds = self.seconds("timeout_seconds", timeout_seconds)
        self.batch_size = self.whole("batch_size", batch_size)
        self.max_characters = self.whole("max_characters", max_characters)
        self.clock = clock

    @abstractmethod
    def rerank(
        self, query: str, passages: Sequence[str], *, timeout_seconds: float
    ) -> Sequence[float]:
        """Return one score per passage, in the same order: the higher, the better it fits.

        ``passages`` is never empty and never longer than ``self.batch_size``. The scores of
        several batches are compared, so each must depend on its passage alone.

        Raises:
            ProviderUnavailable: the server is down, busy or still loading.
            ProviderError: any other unusable answer.
        """

    def scores(self, query: str, passages: Sequence[str], *, timeout_seconds: float) -> list[float]:
        """Return what ``rerank`` does, for any number of passages, all within the time.

        Raises:
            ProviderError: a batch failed. Any other error that ``rerank`` raises is converted.
        """
        until = self.clock() + timeout_seconds
        sent = [text[: self.max_characters] for text in (query, *passages)]
        found: list[float] = []
        while len(found) < len(passages):
            start = len(found) + 1
            batch = sent[start : start + self.batch_size]
            seconds = until - self.clock()
            if seconds <= 0:
                raise ProviderTimeout(f"{self} did not answer in time.")
            with answers.provider_errors(self, texts=[sent[0], *batch]):
                answer = self.rerank(sent[0], batch, timeout_seconds=seconds)
            with answers.provider_errors(self):
                found += self._checked(answer, count=len(batch))
        return found

    def warm_up(self) -> None:
        """Load a model that runs in this process now, not at the first search.

        Raises:
            ProviderError: it cannot be loaded.
        """

    def _checked(self, answer: object, *, count: int) -> list[float]:
        """Return the scores of an answer, which may be a list, an array or a tensor."""
        with suppress(TypeError, ValueError, OverflowError):
            found = np.asarray(answer)
            is_numeric = found.dtype.kind in "fiu"
            if is_numeric and found.shape == (count,) and np.isfinite(found).all():
                return [float(score) for score in found]
        # Not chained: numpy's message quotes the values.
        raise ProviderError(f"{self} did not answer a finite score for each of {count} passages.")

    def __str__(self) -> str:
        return f"{self.model} (reranker {self.alias!r})"
