"""Store whole units, in transactions that hold their jobs. None waits for a writer."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from django.db import DatabaseError, InterfaceError

from pgembed_django import conf, database, faults, spaces, store
from pgembed_django.faults import Fault
from pgembed_django.models import Space
from pgembed_django.pipeline.units import Unit, by_spec
from pgembed_django.queue import jobs
from pgembed_django.specs import Spec


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of whole units. Those in none of these are kept and tried again.

    So are the ``busy`` ones.
    """

    units: Sequence[Unit] = ()
    """Units that were stored, with their jobs completed."""
    waited: Mapping[int, float] = field(default_factory=dict)
    """How long each write among them waited for its vectors, in seconds, by job id."""
    outdated: Sequence[Unit] = ()
    """A space was opened after they were planned."""
    unfit: Sequence[tuple[Unit, Exception]] = ()
    """The tables of their specs are not as declared, and the error."""
    put_off: Sequence[tuple[Unit, str]] = ()
    """Something else that is done to their tables got in the way, and the error."""
    refused: Sequence[tuple[Unit, str]] = ()
    lost: Collection[int] = ()
    """Job ids that are another worker's now, or gone with their rows."""
    seconds: float = 0.0
    busy: Sequence[Unit] = ()
    """Somebody has locked one of their tables or failures."""

    def __add__(self, other: Completion) -> Completion:
        return Completion(
            [*self.units, *other.units],
            {**self.waited, **other.waited},
            [*self.outdated, *other.outdated],
            [*self.unfit, *other.unfit],
            [*self.put_off, *other.put_off],
            [*self.refused, *other.refused],
            [*self.lost, *other.lost],
            self.seconds + other.seconds,
            [*self.busy, *other.busy],
        )


def store_whole(
    units: Sequence[Unit],
    *,
    settings: conf.Settings,
    using: str,
    wait: str = database.SHORTLY,
    is_again: bool = False,
) -> Completion:
    """Store whole units and complete their jobs, vectors and completion together.

    Units whose jobs an open writer has locked are left alone. Results of lost ones are
    discarded. A unit's own error counts against that unit only. A time-out over several is
    raised, and so are errors of the server or of our own tables. ``is_again``: this unit has just
    failed alone.
    """
    started = time.perf_counter()
    try:
        with database.giving_way(using, wait=wait, pipelined=True, keep_plans=True):
            dropped = {space_id for unit in units for space_id in unit.dropped_spaces}
            spaces.put_off_switch(dropped, using=using)
            read_live = spaces.ask_live_states({unit.spec for unit in units}, using=using)
            held = jobs.hold([unit.claim for unit in units], using=using)
            ours = [unit for unit in units if unit.claim.id in held.ours]
            live = read_live()
            outdated = _planned_without_a_space(ours, live)
            for spec, of_spec in by_spec(outdated).items():
                # Paid for: the job that is given back goes on from there.
                _apply(spec, of_spec, live[spec.key], using=using)
            ours = [unit for unit in ours if unit not in outdated]
            for spec, of_spec in by_spec(ours).items():
                _write(spec, of_spec, live[spec.key], using=using)
            read_waited = jobs.complete(
                {unit.claim.id: unit.chunks for unit in ours},
                keep_seconds=settings.keep_succeeded_seconds,
                using=using,
            )
    except database.Busy:
        return Completion(busy=units)
    except DatabaseError as error:
        is_many = len(units) > 1
        match faults.of(error):
            case Fault.OUTAGE | Fault.OURS:
                raise
            case Fault.TOO_SLOW if is_many:
                raise
            case Fault.SCHEMA | Fault.PASSING if len(of_specs := by_spec(units)) > 1:
                return _store_apart([*of_specs.values()], settings=settings, using=using, wait=wait)
            case Fault.SCHEMA | Fault.PASSING if not store.is_fit(units[0].spec, using=using):
                return Completion(unfit=[(unit, error) for unit in units])
            case _ if is_many:
                # One unit's data may be at fault. It must not fail the others.
                middle = len(units) // 2
                halves = [units[:middle], units[middle:]]
                return _store_apart(halves, settings=settings, using=using, wait=wait)
            case Fault.TOO_SLOW | Fault.SCHEMA | Fault.PASSING if not is_again:
                # Canceled by a person, or while the table was altered: it is not yet to blame.
                return store_whole(units, settings=settings, using=using, wait=wait, is_again=True)
        ended = [(units[0], f"{type(error).__name__}: {faults.said(error)}")]
        return Completion(put_off=ended) if faults.is_nobodys(error) else Completion(refused=ended)
    seconds = time.perf_counter() - started
    return Completion(ours, read_waited(), outdated, lost=held.lost, seconds=seconds)


def _store_apart(
    parts: Sequence[Sequence[Unit]], *, settings: conf.Settings, using: str, wait: str
) -> Completion:
    done = store_whole(parts[0], settings=settings, using=using, wait=wait)
    for units in parts[1:]:
        try:
            done += store_whole(units, settings=settings, using=using, wait=wait)
        except (DatabaseError, InterfaceError):
            break  # the next try will find it: report what was done first
    return done


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
