"""The specs that a worker leaves alone because their tables differ from its declarations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pgembed_django import events, faults
from pgembed_django.embedding.holding import Units
from pgembed_django.embedding.units import Unit
from pgembed_django.specs import Spec

RELEASED_SECONDS = 1.0
"""How soon units that were given back unread are tried again."""


class Aside:
    """The specs that are set aside, and why: a deploy is under way, or has failed.

    The other specs go on. A spec is taken up again once its tables fit.
    """

    def __init__(self, *, holding: Units) -> None:
        self.reasons: dict[Spec, str] = {}
        self._holding = holding

    def __contains__(self, spec: Spec) -> bool:
        return spec in self.reasons

    def __iter__(self) -> Iterator[Spec]:
        return iter(list(self.reasons))

    def put(self, spec: Spec, error: Exception) -> None:
        """Set a spec aside."""
        if spec not in self:
            events.tell(events.SPEC_SET_ASIDE, spec=spec.key, error=faults.said(error))
        self.reasons[spec] = f"{type(error).__name__}: {faults.said(error)}"

    def release(self, units: Iterable[Unit]) -> None:
        """Give their units back without spending an attempt. Their vectors so far are staged."""
        for unit in units:
            self._holding.stage_vectors(unit)
            self._holding.release(
                unit, delay_seconds=RELEASED_SECONDS, reason=self.reasons[unit.spec]
            )

    def take_up(self, spec: Spec) -> None:
        """Resume a spec."""
        del self.reasons[spec]
        events.tell(events.SPEC_TAKEN_UP, spec=spec.key)
