"""What a batch may hold, its outcomes, and what is logged about it."""

from __future__ import annotations

from collections.abc import Sequence

from pgembed_django import events, faults
from pgembed_django.embedding.pool import outage_of
from pgembed_django.embedding.units import Batch, Wanted
from pgembed_django.exceptions import ProviderError
from pgembed_django.providers.base import Embedded


def go_together(one: Wanted, other: Wanted) -> bool:
    """Return whether they may share a batch. A doubtful unit shares with none."""
    return one.unit is other.unit or not (one.unit.is_doubtful or other.unit.is_doubtful)


def outcomes(batch: Batch) -> list[Embedded | ProviderError]:
    """Return one outcome per chunk. If the whole batch failed, all share its error."""
    error = batch.future.exception()
    if error is None:
        return batch.future.result()
    if not isinstance(error, ProviderError):
        error = ProviderError(faults.described(error))
    return [error] * len(batch.wanted)


def tell(batch: Batch, *, has_paused: bool, seconds: float) -> None:
    """Log the outcome of a batch, never its texts. ``has_paused``: as ``Pool.ended`` returned."""
    found = outcomes(batch)
    if not batch.wanted and not batch.pool.paused_seconds:
        events.tell(events.PROVIDER_BACK, provider=batch.pool.provider.alias)
    elif outage_of(batch.future):
        events.tell(
            events.PROVIDER_PAUSED,
            about=batch,
            is_logged=has_paused,
            provider=batch.pool.provider.alias,
            seconds=batch.pool.paused_seconds,
            error=batch.pool.reason,
            milliseconds=seconds * 1000,
        )
    else:
        _tell_of_chunks(batch, found, seconds=seconds)
    _tell_of_cuts(batch, found)


def _tell_of_chunks(
    batch: Batch, found: Sequence[Embedded | ProviderError], *, seconds: float
) -> None:
    """Log how many chunks were embedded and how many were refused."""
    provider = batch.pool.provider
    refused = sum(not isinstance(outcome, Embedded) for outcome in found)
    rows = len({one.unit for one in batch.wanted})
    if len(found) > refused:
        events.tell(
            events.BATCH_EMBEDDED,
            about=batch,
            provider=provider.alias,
            model=str(provider),
            chunks=len(found) - refused,
            rows=rows,
            tokens=sum(provider.weigh_document(one.chunk.text) for one in batch.wanted),
            milliseconds=seconds * 1000,
        )
    if refused:
        events.tell(
            events.BATCH_FAILED,
            about=batch,
            provider=provider.alias,
            model=str(provider),
            chunks=len(found),
            rows=rows,
            refused=refused,
            milliseconds=seconds * 1000,
        )


def _tell_of_cuts(batch: Batch, found: Sequence[Embedded | ProviderError]) -> None:
    """Log how many rows have texts that were cut to fit, and name one of them."""
    cut = {
        (one.unit.claim.spec, one.unit.claim.source_pk)
        for one, outcome in zip(batch.wanted, found, strict=True)
        if isinstance(outcome, Embedded) and outcome.was_cut
    }
    if cut:
        spec, source_pk = min(cut)
        events.tell(
            events.TEXTS_CUT,
            provider=batch.pool.provider.alias,
            model=str(batch.pool.provider),
            rows=len(cut),
            spec=spec,
            source_pk=source_pk,
        )
