"""If a text does not fit, embed it in pieces, and use the mean of their vectors.

For ``too_long="split"``. The mean is weighted by the pieces' lengths, as in OpenAI's cookbook
("Embedding texts that are longer than the model's maximum context length").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from pgembed_django.exceptions import InputTooLong, ProviderError, ProviderLost, ProviderUnavailable
from pgembed_django.providers import cutting
from pgembed_django.providers.answers import Embedded, Vector
from pgembed_django.providers.batching import isolate_failures

if TYPE_CHECKING:
    from pgembed_django.providers.base import Provider

MAX_HALVINGS: Final = 8
"""A text that does not fit even in 2**8 = 256 pieces is refused."""

Outcome = Embedded | ProviderError


def embed_halved(
    provider: Provider, texts: Sequence[str], outcomes: Sequence[Outcome], *, halvings: int = 0
) -> list[Outcome]:
    """Return the outcomes, with those of texts that are too long computed from their halves."""
    halves = {
        index: cutting.halves(cutting.well_formed(texts[index]))
        for index, outcome in enumerate(outcomes)
        if isinstance(outcome, InputTooLong) and len(texts[index]) > 1
    }
    if not halves or halvings == MAX_HALVINGS:
        return list(outcomes)
    pieces = [piece for both in halves.values() for piece in both]
    try:
        found: list[Outcome] = isolate_failures(provider, pieces)
    except ProviderUnavailable as error:
        found = [error] * len(pieces)
    found = embed_halved(provider, pieces, found, halvings=halvings + 1)
    replaced = list(outcomes)
    for number, (index, both) in enumerate(halves.items()):
        replaced[index] = _joined(both, found[2 * number : 2 * number + 2])
    return replaced


def _joined(pieces: Sequence[str], outcomes: Sequence[Outcome]) -> Outcome:
    """Return the mean of the pieces' vectors, or one error, by ``_rank``, if any piece failed."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, ProviderError)]
    if errors:
        return min(errors, key=_rank)
    rows = [outcome.vector for outcome in outcomes if isinstance(outcome, Embedded)]
    total = np.average(rows, axis=0, weights=[len(piece) for piece in pieces])
    norm = float(np.linalg.norm(total))
    if not norm:
        return InputTooLong("The text does not fit, and the vectors of its pieces cancel out.")
    vector: Vector = (total / norm).astype(np.float32)
    return Embedded(vector, was_cut=True)


def _rank(error: ProviderError) -> int:
    """Return the rank of an error, to choose one. ``ProviderLost`` first, other outages last."""
    if isinstance(error, ProviderLost):
        return 0
    return 2 if isinstance(error, ProviderUnavailable) else 1
