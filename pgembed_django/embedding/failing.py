"""What becomes of a unit whose chunk has failed, or whose provider is paused."""

from __future__ import annotations

from collections.abc import Collection

from pgembed_django import spaces
from pgembed_django.embedding.holding import Units
from pgembed_django.embedding.units import Failure, Part, Unit
from pgembed_django.exceptions import InputRefused, ProviderLost, ProviderUnavailable
from pgembed_django.models import Space


class Failing:
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
