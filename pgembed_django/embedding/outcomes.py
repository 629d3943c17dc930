"""How units end whose chunks have failed."""

from __future__ import annotations

from pgembed_django import spaces
from pgembed_django.embedding.units import Failure, Part, Unit, Units
from pgembed_django.embedding.writer import Writer
from pgembed_django.exceptions import InputRefused, ProviderLost, ProviderUnavailable
from pgembed_django.models import Space


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
            units.settle(unit)


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
