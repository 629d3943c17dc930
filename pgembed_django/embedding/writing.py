"""Write the results of whole units, in the transactions that complete their jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from pgembed_django import spaces, store
from pgembed_django.embedding.units import Unit, by_spec
from pgembed_django.models import Space
from pgembed_django.specs import Spec


def begin(units: Sequence[Unit], *, using: str) -> Callable[[Sequence[Unit]], list[Unit]]:
    """Begin to write whole units. Returns what writes those that are still ours.

    That returns the units that it wrote. The others were planned without a space that is live by
    now: what they have is stored, as it is paid for, and their jobs go on from there.
    """
    dropped = {space_id for unit in units for space_id in unit.dropped_spaces}
    spaces.put_off_switch(dropped, using=using)
    read_live = spaces.ask_live_states({unit.spec for unit in units}, using=using)

    def write(ours: Sequence[Unit]) -> list[Unit]:
        live = read_live()
        outdated = _planned_without_a_space(ours, live)
        for spec, of_spec in by_spec(outdated).items():
            _apply(spec, of_spec, live[spec.key], using=using)
        planned = [unit for unit in ours if unit not in outdated]
        for spec, of_spec in by_spec(planned).items():
            _write(spec, of_spec, live[spec.key], using=using)
        return planned

    return write


def _planned_without_a_space(
    units: Sequence[Unit], live: defaultdict[str, dict[int, spaces.LiveState]]
) -> list[Unit]:
    """Return the units without a space that was opened or activated after they were planned.

    A space that was retired and reopened after they were planned counts as opened.

    Also those whose spaces are all gone. Completing them would leave a gap or a stale text in a
    space that may be searched by now; after a flush of the database it would leave the row to the
    reconciler. If a space is opened after this look, the reconciler has yet to fill it. If one is
    activated after it, the last look of that switch finds the gap.
    """

    def is_for(unit: Unit) -> bool:
        present = live[unit.spec.key]
        searched = {key for key, one in present.items() if one.state == Space.State.ACTIVE}
        return (
            bool(present)
            and {(key, one.retired_at) for key, one in present.items()} <= unit.planned_spaces
            and not searched & unit.dropped_spaces
        )

    return [unit for unit in units if not unit.is_gone and not is_for(unit)]


def _apply(
    spec: Spec, units: Sequence[Unit], live: Mapping[int, spaces.LiveState], *, using: str
) -> None:
    """Store the parts of units in live spaces."""
    changes = [
        unit.change(part)
        for unit in units
        for part in unit.parts
        if not part.plan.is_fresh and part.is_live(live)
    ]
    if changes:
        store.apply(spec, changes, using=using)


def _write(
    spec: Spec, units: Sequence[Unit], live: Mapping[int, spaces.LiveState], *, using: str
) -> None:
    gone = [unit.claim.source_pk for unit in units if unit.is_gone]
    if gone:
        store.forget(spec, gone, using=using)
    _apply(spec, units, live, using=using)
    staged = [
        unit.claim.source_pk
        for unit in units
        # What is staged for a space whose part was dropped saves the job that fills it the work.
        if not unit.dropped_spaces
        and (unit.has_staged or any(part.is_staged for part in unit.parts))
    ]
    if staged:
        store.unstage(spec, staged, using=using)
