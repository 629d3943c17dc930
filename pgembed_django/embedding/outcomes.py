"""The outcomes of a batch: what is logged, and what becomes of units whose chunks failed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pgembed_django import events, faults, spaces
from pgembed_django.embedding.pool import outage_of
from pgembed_django.embedding.units import Batch, Failure, Part, Unit, Units
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


def tell(batch: Batch, *, has_paused: bool, seconds: float) -> None:
    """Log the outcome of a batch, never its texts. ``has_paused``: as ``Pool.ended`` returned."""
    found = of(batch)
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


class Failures:
    """Failures, kept until nothing of their units is awaited, and stranded parts."""

    def __init__(self, *, holding: Units) -> None:
        self.holding = holding
        self._failures: list[Failure] = []
        # In the order they came. A unit may be stranded with two providers at once.
        self._stranded: dict[Part, Failure] = {}

    @property
    def parts(self) -> set[Part]:
        """The parts with a failed chunk: no more of their chunks are sent."""
        return {failure.part for failure in self._failures}

    @property
    def stranded(self) -> list[Failure]:
        """The parts that wait for paused providers, until ``give_up`` lets each go."""
        return list(self._stranded.values())

    def add(self, failure: Failure) -> None:
        """Note the failure that a unit will end with."""
        self._failures.append(failure)

    def strand(self, failure: Failure) -> None:
        """Let a unit wait for a paused provider."""
        if isinstance(failure.outcome, ProviderLost):
            self._stranded[failure.part] = failure
        else:
            self._stranded.setdefault(failure.part, failure)

    def end(self, *, awaited: Collection[Unit]) -> None:
        """End the units with failed chunks, each once nothing of it is awaited.

        Its other chunks, of this batch or a later one, are staged: a retry would pay for them
        again.
        """
        # First, while all are still noted: this may lose the database.
        specs = {failure.unit.spec for failure in self._failures}
        live = spaces.ask_live_states(specs, using=self.holding.using)()
        failures, self._failures = self._failures, []
        # If a provider went down with a text, its other chunks never had their turn.
        failures.sort(key=lambda failure: not isinstance(failure.outcome, ProviderLost))
        for failure in failures:
            unit, outcome = failure.unit, failure.outcome
            if unit not in self.holding or failure.part not in unit.parts:
                continue  # lost, or ended because of another of its chunks
            if unit in awaited:
                self._failures.append(failure)
            elif failure.part.space.pk not in live[unit.spec.key]:
                self._drop(unit, failure.part)  # another space is searched by now
            elif isinstance(outcome, ProviderLost):
                self._lose(failure)
            elif isinstance(outcome, ProviderUnavailable):
                self.strand(failure)
            elif _delays_active(unit, failure.part):
                self._drop(unit, failure.part)
            else:
                self.keep_whole(unit)
                if isinstance(outcome, InputRefused):
                    self.holding.fail(unit, str(outcome))
                else:
                    self.holding.retry(unit, str(outcome))

    def give_up(self, stranded: Failure) -> None:
        """Let go of a unit that waits for a paused provider.

        A space that is being built never delays the active one: only its part is dropped,
        and the reconciler brings it back. But if its provider went down with the text, the
        job must remember that. The active space does not keep it from being filled either.
        """
        unit, part, pool, outcome = stranded
        self._stranded.pop(part, None)
        if part not in unit.parts:
            return
        is_lost = isinstance(outcome, ProviderLost)
        is_delaying = _delays_active(unit, part)
        if is_delaying and not is_lost:
            self._drop(unit, part)
            return
        self.keep_whole(unit)
        self.holding.release(
            unit,
            delay_seconds=0 if is_delaying else pool.paused_seconds,
            reason=pool.reason,
            outages=int(is_lost),
        )

    def keep_whole(self, unit: Unit) -> None:
        """Stage the whole parts of a unit, before its job fails or is given back.

        Fresh ones have nothing to store, but those of a former text in other spaces are marked.
        """
        has_former = any(part.waiting and not part.plan.is_new for part in unit.parts)
        self.holding.to_stage += [
            (unit, part)
            for part in unit.parts
            if not part.waiting and (has_former or not part.plan.is_fresh)
        ]

    def _lose(self, failure: Failure) -> None:
        unit, _, pool, outage = failure
        times = unit.claim.outages
        if times < self.holding.settings.max_crashes:
            self.strand(failure)
            return
        # The first time it had company. Since then it was sent alone each time, just after
        # the provider had answered a plain word.
        self.keep_whole(unit)
        self.holding.fail(
            unit, f"{pool.provider} went down {times} times at this text alone: {outage}"
        )

    def _drop(self, unit: Unit, part: Part) -> None:
        unit.parts.remove(part)
        unit.dropped_spaces.add(part.space.pk)
        self.holding.look_at(unit)


def _delays_active(unit: Unit, part: Part) -> bool:
    """Return whether the active space waits for a part of a space that is being built."""
    return part.space.state == Space.State.BUILDING and any(
        other.space.state == Space.State.ACTIVE and not other.plan.is_fresh for other in unit.parts
    )
