"""Report to a person whether a provider answers, with what, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pgembed_django.exceptions import (
    ModelMissing,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from pgembed_django.providers import answers
from pgembed_django.providers.batching import fitting_one_request

if TYPE_CHECKING:
    from pgembed_django.providers.base import Provider

BATCHES: Final = (1, 8, 32)

NEARLY_AS_FAST: Final = 1.1
"""Recommend the smallest batch within this factor of the fastest: its failure costs less."""

USUAL_TOKENS: Final = 512

SAMPLE: Final = " ".join(
    [
        "The worker claims the rows that have changed, cuts their texts into passages and asks",
        "for their vectors. What comes back is stored in one short transaction, so that a search",
        "finds either the old passages of a row or the new ones, and never some of both.",
    ]
    * 4
)
"""A passage of typical length, about 200 words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The result of a probe. ``message`` tells a person what failed. Empty: nothing failed.

    ``doubt`` tells why the model that answers may be another one than is meant. Such a model is
    neither present nor missing: ``model_present`` is None.
    """

    reachable: bool
    model_present: bool | None
    width: int | None
    digest: str | None
    seconds: float
    message: str
    doubt: str = ""

    @property
    def ok(self) -> bool:
        return not self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long one batch took, or why it failed, in ``message``."""

    batch_size: int
    milliseconds_per_text: float | None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A probe, and timings of batches made after it, when the model is loaded."""

    probe: Probe
    timings: tuple[Timing, ...] = ()

    @property
    def ok(self) -> bool:
        return self.probe.ok and self.recommended_batch_size is not None

    @property
    def recommended_batch_size(self) -> int | None:
        """The smallest size that is nearly as fast per text as the fastest. None: none worked."""
        answered = [
            (timing.milliseconds_per_text, timing.batch_size)
            for timing in self.timings
            if timing.milliseconds_per_text is not None
        ]
        fastest, _ = min(answered, default=(0.0, 0))
        nearly = [size for each, size in answered if each <= fastest * NEARLY_AS_FAST]
        return min(nearly, default=None)


def probe(provider: Provider) -> Probe:
    """Embed one word, as a text and as a query. Errors are reported too, not raised."""
    started = time.monotonic()
    reachable, present, width, digest, message = True, None, None, None, ""
    try:
        with answers.provider_errors(provider):
            provider.warm_up()
            started = time.monotonic()
            answer = answers.matrix_of(
                provider.embed_batch([provider.health_check_text]), name=str(provider)
            )
            present, width = True, int(answer.shape[-1])
            provider.check(answer, count=1)
            provider.embed_query(provider.health_check_text)  # which may be asked otherwise
            digest = provider.model_digest()
    except ModelMissing as error:
        present, message = False, str(error)
    except ProviderMisconfigured as error:
        message = str(error)
    except ProviderUnavailable as error:
        reachable, message = False, str(error)
    except ProviderError as error:
        message = str(error)
    seconds = time.monotonic() - started
    doubt = ""
    if reachable:
        with suppress(ProviderError), answers.provider_errors(provider):
            doubt = provider.doubt()
    return Probe(
        reachable=reachable,
        model_present=None if doubt and present else present,
        width=width,
        digest=digest,
        seconds=seconds,
        message=message,
        doubt=doubt,
    )


def report(provider: Provider, *, clock: Callable[[], float] = time.perf_counter) -> Report:
    """Probe a provider. If it works, time batches of up to its ``batch_size``."""
    found = probe(provider)
    return Report(probe=found, timings=tuple(timings(provider, clock=clock) if found.ok else ()))


def context(provider: Provider) -> str:
    """Return how many tokens a server takes that may cut silently, as far as chunks need it."""
    try:
        provider.context.reach(USUAL_TOKENS)
    except ProviderUnavailable as error:
        return str(error)
    return str(provider.context)


def timings(
    provider: Provider, *, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Timing]:
    """Time batches of up to a provider's ``batch_size``, and yield each when it has ended."""
    sizes = {min(size, provider.batch_size) for size in BATCHES}
    if provider.tells_too_long:  # a model here, which likes large batches
        sizes.add(fitting_one_request(provider, [SAMPLE] * provider.batch_size))
    for size in sorted(sizes):
        # All texts differ, so that no server can answer from a cache.
        texts = [f"{provider.document_prefix}{size}.{number} {SAMPLE}" for number in range(size)]
        started = clock()
        try:
            with answers.provider_errors(provider):
                provider.check(provider.embed_batch(texts), count=size)
        except ProviderError as error:
            yield Timing(batch_size=size, milliseconds_per_text=None, message=str(error))
        else:
            each = (clock() - started) * 1000 / size
            yield Timing(batch_size=size, milliseconds_per_text=each)
