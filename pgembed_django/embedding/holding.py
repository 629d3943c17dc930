"""The units in progress, by the ids of their jobs, and what is to be saved of them."""

from __future__ import annotations

from collections.abc import Iterable

from pgembed_django import conf
from pgembed_django.embedding.units import Part, Unit, by_spec
from pgembed_django.queue.in_flight import InFlight
from pgembed_django.specs import Spec


class Units:
    """A unit that is not here is no longer worked on."""

    def __init__(self, held: InFlight, *, using: str, settings: conf.Settings) -> None:
        self.held = held
        self.using = using
        self.settings = settings
        self.by_id: dict[int, Unit] = {}
        self.without_text: dict[int, Unit] = {}
        """The units whose text could be stored before their vectors, the oldest first."""
        self.to_stage: list[tuple[Unit, Part]] = []
        """Parts with vectors of units that need more batches, or are about to be given back."""

    def __contains__(self, unit: Unit) -> bool:
        return self.by_id.get(unit.claim.id) is unit

    def add(self, units: Iterable[Unit]) -> None:
        """Take in newly claimed units, which are not planned yet."""
        self.by_id |= {unit.claim.id: unit for unit in units}

    def drop(self, job_ids: Iterable[int]) -> None:
        """Forget units that have ended or are lost."""
        for job_id in job_ids:
            self.by_id.pop(job_id, None)
            self.without_text.pop(job_id, None)

    def look_at(self, unit: Unit) -> None:
        """Note whether a unit is whole now, and whether its text is stored."""
        if unit not in self:
            return
        if unit.is_whole:
            self.held.finish(unit.claim, unit)
        if unit.lacks_text:
            self.without_text[unit.claim.id] = unit
        else:
            self.without_text.pop(unit.claim.id, None)

    def unplanned(self, units: Iterable[Unit]) -> dict[Spec, list[Unit]]:
        """Return the units that are held but not planned yet, by spec."""
        return by_spec(unit for unit in units if unit in self and not unit.is_planned)

    def fail(self, unit: Unit, error: str) -> None:
        """Fail the unit's job without another attempt: its text cannot be embedded."""
        self.held.fail(unit.claim, error)

    def retry(self, unit: Unit, error: str) -> None:
        """Spend an attempt of the unit's job: it is retried after a backoff, or fails."""
        self.held.retry(unit.claim, error)

    def put_off(self, unit: Unit, error: str) -> None:
        """Give a unit back that could not be stored, which was not its fault. Its vectors are kept.

        If that does not pass, attempts are spent in the end.
        """
        self.stage_vectors(unit)
        self.held.put_off(unit.claim, error)

    def release(
        self, unit: Unit, *, delay_seconds: float = 0, reason: str = "", outages: int = 0
    ) -> None:
        """Give the unit's job back without spending an attempt."""
        self.held.release(unit.claim, delay_seconds=delay_seconds, reason=reason, outages=outages)

    def stage_vectors(self, unit: Unit) -> None:
        """Stage the vectors that a unit has, before it is given back because of its table."""
        unit.is_set_aside = True
        self.to_stage += [(unit, part) for part in unit.parts if part.vectors]
