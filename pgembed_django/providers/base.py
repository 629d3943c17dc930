"""The public protocol of providers, which turn texts into vectors: what to subclass.

No database, no settings.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import numpy as np

from pgembed_django.chunking import Truncation
from pgembed_django.core.adapting import AdaptiveSize
from pgembed_django.core.options import Options
from pgembed_django.exceptions import InputRefused, InputTooLong, ProviderError
from pgembed_django.providers import answers, probes
from pgembed_django.providers.answers import Embedded, Fault, Vector, Vectors
from pgembed_django.providers.batching import HOLD_SECONDS, Suspected, isolate_failures
from pgembed_django.providers.probes import Probe
from pgembed_django.providers.recognition import Canary, Context

__all__ = ["Embedded", "Probe", "Provider", "Vector", "Vectors"]

MOST_DIMENSIONS: Final = 16_000


class Provider(Options, ABC):
    """One model of one server or library. Threads share it, so it must be thread-safe.

    A subclass implements ``embed_batch``. Its own options are keywords of ``__init__``,
    which passes all others to the base class.
    """

    health_check_text: Final = "hello"
    """A text that every model can embed: if it fails, the server is at fault, not the texts."""

    quotes_no_text = False
    """Whether the messages of its errors never hold a part of a text."""

    concurrency: int | None = None
    """How many requests keep its model busy. None: PGEMBED_CONCURRENCY, as a server has others."""

    tells_too_long: ClassVar[bool] = False
    """Whether ``embed_checked`` tells which texts are too long, by ``InputTooLong`` as their fault.
    Then no text need be counted before it is sent."""

    space_options: ClassVar[tuple[str, ...]] = ("truncate_dimensions",)
    """The options that change the vectors, besides the prefixes. Each is an attribute as well."""

    def __init__(
        self,
        *,
        alias: str,
        model: str,
        dimensions: int,
        document_prefix: str = "",
        query_prefix: str = "",
        truncate_dimensions: bool = False,
        batch_size: int = 32,
        max_tokens_per_batch: int | None = None,
        max_input_tokens: int | None = None,
        too_long: Literal["cut", "refuse"] = "cut",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.alias = alias
        self.model = self.name("MODEL", model)
        self.dimensions = self.whole("DIMENSIONS", dimensions)
        if dimensions > MOST_DIMENSIONS:
            raise self.wrong(
                "DIMENSIONS", dimensions, f"pgvector stores {MOST_DIMENSIONS:,} at most"
            )
        self.document_prefix = self.string("document_prefix", document_prefix)
        self.query_prefix = self.string("query_prefix", query_prefix)
        self.truncate_dimensions = self.flag("truncate_dimensions", truncate_dimensions)
        self.batch_size = self.whole("batch_size", batch_size)
        self.max_tokens_per_batch = self.optional(
            self.whole, "max_tokens_per_batch", max_tokens_per_batch
        )
        self._max_input_tokens = self.optional(self.whole, "max_input_tokens", max_input_tokens)
        if too_long not in ("cut", "refuse"):
            raise self.wrong("too_long", too_long, 'Set it to "cut" or "refuse"')
        self.too_long = too_long
        self.clock = clock
        self.size = AdaptiveSize(
            batch_size, most=batch_size, hold_seconds=HOLD_SECONDS, clock=clock
        )
        self.learnt_characters: int | None = None
        self.told_digest: str | None = None
        """The model's digest, as last read from the server."""
        self.is_metered = False
        """Whether to count ``sent``. Off by default, because counting tokens takes time."""
        self._sent: Counter[str] = Counter()
        self._sent_lock = threading.Lock()
        self.canary = Canary(self)
        self.context = Context(self)

    @abstractmethod
    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per text, in the same order.

        Shape: ``(len(texts), self.dimensions)``, float32, or wider if ``truncate_dimensions``.
        ``texts`` is never empty and never longer than ``self.batch_size``. Each text already has
        its prefix.

        Raises:
            InputTooLong: a text does not fit the model's context. Retrying is useless.
            InputRefused: a text can never be embedded. Retrying is useless.
            ProviderUnavailable: the server is down, busy or still loading. Not the texts' fault.
            ProviderError: any other unusable answer. Retrying may help.
        """

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Return one unit vector per text, in the same order, for any number of texts.

        Raises:
            ProviderError: any text failed. The first failure is raised.
        """
        if not texts:
            return np.empty((0, self.dimensions), dtype=np.float32)
        embedded = []
        for outcome in self.embed_each(texts):
            if isinstance(outcome, ProviderError):
                raise outcome
            embedded.append(outcome.vector)
        return np.stack(embedded)

    def embed_each(
        self, texts: Sequence[str], *, ask_first: bool = False, suspected: Suspected = None
    ) -> list[Embedded | ProviderError]:
        """Return one outcome per text, in the same order: a bad text fails alone.

        The outcome ``ProviderUnavailable`` means that the server went down before it got this
        text: charge it no attempt. ``ProviderLost`` means that it went down while it had this
        text. ``ask_first``: send nothing unless the server now passes a health check.
        ``suspected``: the kind of outage that a text may have caused. See ``batching.Suspected``.

        Raises:
            ProviderUnavailable: no text was embedded, and none is to blame. Charge none.
        """
        return isolate_failures(self, texts, ask_first=ask_first, suspected=suspected)

    def embed_query(self, text: str, *, timeout_seconds: float | None = None) -> Vector:
        """Return the vector of a search query. Does not retry.

        Raises:
            InputRefused: the text is empty, or can never be embedded.
            ProviderError: anything else went wrong.
        """
        if not text.strip():
            raise InputRefused("The query is empty.")
        query = Truncation(text)
        while True:
            prefixed = self.query_prefix + query.sent
            try:
                with answers.provider_errors(self, texts=[text]):
                    answer = self.embed_query_batch([prefixed], timeout_seconds=timeout_seconds)
                    unit, faults = self.check(answer, count=1)
                break
            except InputTooLong:
                if self.too_long == "refuse" or not query.again(0):
                    raise
        if faults[0]:
            raise InputRefused(f"{self} answered {faults[0]} for the query.")
        vector: Vector = unit[0]
        return vector

    def embed_query_batch(self, texts: Sequence[str], *, timeout_seconds: float | None) -> Vectors:
        """Do what ``embed_batch`` does, for a query. Override it to respect the time-out."""
        return self.embed_batch(texts)

    def answer(self, texts: Sequence[str]) -> tuple[Vectors, list[Fault]]:
        """Send one batch of documents. Return their vectors and faults as ``answers.checked``.

        Raises:
            ProviderError: ``embed_batch`` failed. Any other error that it raises is converted.
        """
        if self.is_metered:
            tokens = sum(map(self.weigh_document, texts))
            with self._sent_lock:
                self._sent.update(requests=1, tokens=tokens)
        with answers.provider_errors(self, texts=texts):
            return self.embed_checked([self.document_prefix + text for text in texts])

    def embed_checked(self, texts: Sequence[str]) -> tuple[Vectors, list[Fault]]:
        """Return what ``answer`` does. Each text already has its prefix."""
        return self.check(self.embed_batch(texts), count=len(texts))

    def check(self, answer: object, *, count: int) -> tuple[Vectors, list[Fault]]:
        """Check an answer of ``embed_batch``. Returns and raises as ``answers.checked``."""
        return answers.checked(
            answer,
            count=count,
            dimensions=self.dimensions,
            truncates=self.truncate_dimensions,
            name=str(self),
        )

    def model_digest(self) -> str | None:
        """Return the server's digest of the exact model, or None if it has none.

        Raises:
            ProviderUnavailable: it cannot be asked now. Do not return None then: None means
                another model, so every outage would open a new space.
        """
        return None

    def model_facts(self) -> str:
        """Return what the server tells about its model, for people. It may change at any time."""
        return self.told_digest or ""

    def doubt(self) -> str:
        """Return why the model that answers may not be the one that is meant. Empty: no reason."""
        return ""

    @property
    def start_seconds(self) -> float:
        """How long its model took to start. Zero: a server has it, or it was not used yet."""
        return 0.0

    def runs_on(self) -> str:
        """Return what its model runs on, for people. Empty: a server knows."""
        return ""

    @property
    def may_cut_silently(self) -> bool:
        """Whether its server may cut a text that is too long, and answer all the same."""
        return False

    @property
    def connection(self) -> object | None:
        """What this thread's last answer came over. Another object: perhaps of another server.

        None: unknown. A model in this process stays the same, so it is the provider itself.
        """
        return self

    @classmethod
    def backend_path(cls) -> str:
        """Return the dotted path of the class where it is defined, however it was imported."""
        return f"{cls.__module__}.{cls.__qualname__}"

    def declared(self) -> dict[str, str | int]:
        """Return the part of ``identity`` that a space has columns for, but the digest."""
        return {
            "backend": self.backend_path(),
            "model": self.model,
            "dimensions": self.dimensions,
            "document_prefix": self.document_prefix,
            "query_prefix": self.query_prefix,
        }

    @classmethod
    def space_options_in(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that change the vectors, as far as they are set."""
        return {name: options[name] for name in cls.space_options if options.get(name)}

    def declared_identity(self) -> dict[str, Any]:
        """Return the part of ``identity`` that is known without asking the server."""
        return {**self.declared(), **self.space_options_in(vars(self))}

    def identity(self) -> dict[str, Any]:
        """Return what must be equal for vectors to be comparable. Raises as ``model_digest``."""
        return {**self.declared_identity(), "digest": answers.digest(self)}

    @property
    def max_input_tokens(self) -> int | None:
        """The length of the model's context, or None if unknown."""
        return self._max_input_tokens

    @property
    def texts_per_request(self) -> int:
        """How many texts one request may have at present. Fewer after batches were too large."""
        return min(self.batch_size, self.size.size)

    def count_tokens(self, text: str) -> int | None:
        """Return the exact number of tokens, or None if no tokenizer is available."""
        return None

    def weigh(self, text: str) -> int:
        """Return the number of tokens of ``text``, estimated if counting is impossible or slow.

        The estimate is one token per three bytes: a token is about four English letters, or one
        Chinese character (three bytes).
        """
        counted = answers.counted(self, text)
        return len(text.encode(errors="replace")) // 3 + 1 if counted is None else counted

    def weigh_document(self, text: str) -> int:
        """Return the number of tokens of ``text`` with its prefix, as ``weigh`` does."""
        return self.weigh(self.document_prefix + text)

    def count_document(self, text: str) -> int:
        """Return the number of tokens of ``text`` with its prefix, exact if at all possible.

        This may take long. Raises ``ProviderError`` if the model cannot be loaded.
        """
        counted = self.count_tokens(self.document_prefix + text)
        return self.weigh_document(text) if counted is None else counted

    @property
    def sent(self) -> dict[str, int]:
        """How many ``requests`` and ``tokens`` of documents have been sent so far."""
        with self._sent_lock:
            return dict(self._sent)

    def probe(self) -> Probe:
        """Embed one word, as a text and as a query. Errors are reported too, not raised."""
        return probes.probe(self)

    def warm_up(self) -> None:
        """Load a model that runs in this process now, not at the first request.

        Raises:
            ProviderError: it cannot be loaded.
        """

    def __str__(self) -> str:
        return f"{self.model} (provider {self.alias!r})"
