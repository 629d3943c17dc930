"""The outcomes of batches: what is logged, and how units end whose chunks have failed."""

from __future__ import annotations

from typing import Any

from pgembed_django import events, faults, spaces
from pgembed_django.embedding.pool import outage_of
from pgembed_django.embedding.units import Batch, Failure, Part, Unit, Units
from pgembed_django.embedding.writer import Writer
from pgembed_django.exceptions import InputRefused, ProviderError, ProviderLost, ProviderUnavailable
from pgembed_django.models import Space
from pgembed_django.providers.base import Embedded


def of(batch: Batch) -> list[Embedded | ProviderError]:
    """Return one outcome per chunk. If the whole batch failed, all share its error."""
    error = batch.future.exception()
    if error is None:
        return batch.future.result()
    if not isinstance(error, ProviderError):
        error = ProviderError(faults.described(error))
    return [error] * len(batch.wanted)


def emit(batch: Batch, *, has_paused: bool, seconds: float) -> None:
    """Log the outcome of a batch, never its texts. ``has_paused``: as ``Pool.ended`` returned."""
    pool, provider = batch.pool, batch.pool.provider
    milliseconds = seconds * 1000
    is_outage = outage_of(batch.future) is not None
    if not batch.wanted and not pool.paused_seconds:
        events.tell(events.PROVIDER_BACK, provider=provider.alias)
        return
    if is_outage:
        events.tell(
            events.PROVIDER_PAUSED,
            about=batch,
            is_logged=has_paused,
            provider=provider.alias,
            seconds=pool.paused_seconds,
            error=pool.reason,
            milliseconds=milliseconds,
        )
    found = of(batch)
    embedded = [
        (one, outcome)
        for one, outcome in zip(batch.wanted, found, strict=True)
        if isinstance(outcome, Embedded)
    ]
    named: dict[str, Any] = {"provider": provider.alias, "model": str(provider)}
    of_batch = named | {
        "rows": len({one.unit for one in batch.wanted}),
        "milliseconds": milliseconds,
    }
    if embedded and not is_outage:
        tokens = sum(provider.weigh_document(one.chunk.text) for one in batch.wanted)
        events.tell(
            events.BATCH_EMBEDDED, about=batch, chunks=len(embedded), tokens=tokens, **of_batch
        )
    if len(embedded) < len(found) and not is_outage:
        refused = len(found) - len(embedded)
        events.tell(
            events.BATCH_FAILED, about=batch, chunks=len(found), refused=refused, **of_batch
        )
    cut = {
        (one.unit.claim.spec, one.unit.claim.source_pk)
        for one, outcome in embedded
        if outcome.was_cut
    }
    if cut:
        spec, source_pk = min(cut)
        events.tell(events.TEXTS_CUT, rows=len(cut), spec=spec, source_pk=source_pk, **named)


def end_failed(units: Units, writer: Writer) -> None:
    """End the units with failed parts, once nothing else of them is awaited.

    Their other chunks are staged: a retry would pay for them again.
    """
    failed = [unit for unit in units.failed.values() if unit in units]
    # First, while all are still noted: these may lose the database.
    live = spaces.ask_live_states({unit.spec for unit in failed}, using=units.using)()
    writer.store_text([unit for unit in failed if _is_unavailable(unit)])
    units.failed = {}
    for unit in failed:
        for part, failure in sorted(_failures(unit), key=lambda one: severity(one[1])):
            if _is_spared(unit, part, failure) or part.space_id not in live[unit.spec.key]:
                unit.drop(part)
            else:
                writer.keep_whole(unit)
                _end(units, unit, part, failure)
                break
        else:
            units.look_at(unit)


def _failures(unit: Unit) -> list[tuple[Part, Failure]]:
    return [(part, part.failure) for part in unit.parts if part.failure is not None]


def _is_unavailable(unit: Unit) -> bool:
    return any(isinstance(one.error, ProviderUnavailable) for _, one in _failures(unit))


def severity(failure: Failure) -> int:
    """Return what a unit ends with. If it brought its provider down, that must be remembered."""
    if isinstance(failure.error, ProviderLost):
        return 0
    return 2 if isinstance(failure.error, ProviderUnavailable) else 1


def _is_spared(unit: Unit, part: Part, failure: Failure) -> bool:
    """Return whether the unit goes on without a part.

    A space that is being built never delays the active one. The reconciler brings the part back.
    But if its provider went down with the text, the job must remember that.
    """
    return _delays_active(unit, part) and not isinstance(failure.error, ProviderLost)


def _delays_active(unit: Unit, part: Part) -> bool:
    """Return whether the active space waits for a part of a space that is being built."""
    return part.space.state == Space.State.BUILDING and any(
        other.space.state == Space.State.ACTIVE and not other.plan.is_fresh for other in unit.parts
    )


def _end(units: Units, unit: Unit, part: Part, failure: Failure) -> None:
    pool, error = failure
    outages = unit.claim.outages
    is_lost = isinstance(error, ProviderLost)
    if is_lost and outages >= units.settings.max_crashes:
        # The first failure shared a batch. Each later one sent this text alone, after a successful
        # health check, so the text is at fault.
        what = f"{pool.provider} went down {outages} times at this text alone: {error}"
        units.held.fail(unit.claim, what)
    elif isinstance(error, ProviderUnavailable):
        # The active space does not keep the other from being filled.
        delay = 0.0 if _delays_active(unit, part) else pool.paused_seconds
        units.held.release(
            unit.claim, delay_seconds=delay, reason=pool.reason, outages=int(is_lost)
        )
    elif isinstance(error, InputRefused):
        units.held.fail(unit.claim, str(error))
    else:
        units.held.retry(unit.claim, str(error))
