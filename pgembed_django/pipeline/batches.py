"""What a batch may hold, what came of it, and what is told of it."""

from __future__ import annotations

import logging

from pgembed_django.exceptions import ProviderError
from pgembed_django.pipeline.units import Batch, Request
from pgembed_django.providers.base import Embedded

logger = logging.getLogger("pgembed_django")


def go_together(one: Request, other: Request) -> bool:
    """Tell whether they may share a batch. A doubtful unit shares with no other."""
    return one.unit is other.unit or not (one.unit.is_doubtful or other.unit.is_doubtful)


def outcomes(batch: Batch) -> list[Embedded | ProviderError]:
    """Return one outcome for each request: what a whole batch died of is each one's own."""
    error = batch.future.exception()
    if error is None:
        return batch.future.result()
    if not isinstance(error, ProviderError):
        error = ProviderError(f"{type(error).__name__}: {error}")
    return [error] * len(batch.requests)


def log(batch: Batch, *, seconds: float) -> None:
    """Tell what came of a batch. Never its texts."""
    pool = batch.pool
    if not batch.requests and not pool.paused_seconds:
        logger.info("Provider %s answers again", pool.provider.alias)
    elif pool.is_down:
        logger.warning(
            "Provider %s is paused for %.1f s: %s",
            pool.provider.alias,
            pool.paused_seconds,
            pool.reason,
        )
    else:
        logger.info(
            "Embedded %d chunks of %d rows in %.0f ms with %s",
            len(batch.requests),
            len({request.unit for request in batch.requests}),
            seconds * 1000,
            pool.provider,
        )
    cut = {
        (request.unit.claim.spec, request.unit.claim.source_pk)
        for request, outcome in zip(batch.requests, outcomes(batch), strict=True)
        if isinstance(outcome, Embedded) and outcome.was_cut
    }
    if cut:
        logger.warning(
            "%d rows have chunks that did not fit %s as a whole (was_cut), for example %s %s",
            len(cut),
            pool.provider,
            *min(cut),
        )
