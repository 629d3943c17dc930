"""The pipeline's transactions. Each holds the jobs of the units that it writes for.

All are short, and none waits for a writer.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from django.db import DatabaseError, InterfaceError

from pgembed_django import conf, database, faults, jobs, spaces, store
from pgembed_django.pipeline.holding import Holding
from pgembed_django.pipeline.units import Part, Unit
from pgembed_django.specs import Spec

BRIEFLY = "10ms"
"""How long what can be done later waits for a lock: the loop has other things to do."""

Parts = list[tuple[Unit, Part]]
Write = Callable[[Spec, Parts], None]


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of whole units. Those in none of these are held on, to be tried again."""

    units: Sequence[Unit] = ()
    """Those that were stored, their jobs completed."""
    waited: Mapping[int, float] = field(default_factory=dict)
    """How long each write among them has waited for its vectors, in seconds, by job id."""
    outdated: Sequence[Unit] = ()
    """A space was opened since they were planned."""
    refused: Sequence[tuple[Unit, str]] = ()
    lost: Collection[int] = ()
    """Job ids: another's by now, or gone with their rows."""
    seconds: float = 0.0

    def __add__(self, other: Completion) -> Completion:
        return Completion(
            [*self.units, *other.units],
            {**self.waited, **other.waited},
            [*self.outdated, *other.outdated],
            [*self.refused, *other.refused],
            [*self.lost, *other.lost],
            self.seconds + other.seconds,
        )


def store_whole(units: Sequence[Unit], *, settings: conf.Settings, using: str) -> Completion:
    """Store whole units and complete their jobs, vectors and completion together.

    Those whose jobs an open writer has locked are left as they are. The results of lost
    ones are discarded. What is wrong with one is its own; but that several took longer than
    a time-out allows is raised, and so is what is wrong with the server.
    """
    started = time.perf_counter()
    try:
        with database.giving_way(using, in_one_go=True, keep_plans=True):
            live = spaces.live_ids({unit.spec for unit in units}, using=using)
            held = jobs.hold([unit.claim for unit in units], using=using)
            ours = [unit for unit in units if unit.claim.id in held.ours]
            outdated = _planned_without_a_space(ours, live())
            ours = [unit for unit in ours if unit not in outdated]
            for spec, of_spec in _by_spec(ours).items():
                _write(spec, of_spec, using=using)
            waited = jobs.complete(
                {unit.claim.id: unit.chunks for unit in ours},
                keep_seconds=settings.keep_succeeded_seconds,
                using=using,
            )
    except database.Busy:
        return Completion()  # a person is at one of their failures
    except DatabaseError as error:
        many = len(units) > 1
        is_slow = faults.is_canceled(error)
        if (is_slow and many) or (faults.is_outage(error) and not is_slow):
            raise
        if many:
            # One unit's data may be at fault. It must not take the others along.
            return _store_halves(units, settings=settings, using=using)
        return Completion(refused=[(units[0], f"{type(error).__name__}: {error}")])
    seconds = time.perf_counter() - started
    return Completion(ours, waited(), outdated, lost=held.lost, seconds=seconds)


def _store_halves(units: Sequence[Unit], *, settings: conf.Settings, using: str) -> Completion:
    middle = len(units) // 2
    done = store_whole(units[:middle], settings=settings, using=using)
    try:
        return done + store_whole(units[middle:], settings=settings, using=using)
    except (DatabaseError, InterfaceError):
        return done  # as the next try finds: what was done is told first


def stage(holding: Holding, parts: Iterable[tuple[Unit, Part]]) -> set[Spec]:
    """Persist what batches brought for units that wait for further ones.

    Also for those that are about to be given back: their next run resumes there. Returns the
    specs for which it has to be tried again later.
    """
    unfinished = {part: unit for unit, part in parts if part.waiting}

    def write(spec: Spec, ours: Parts) -> None:
        store.stage(spec, [unit.change(part) for unit, part in ours], using=holding.using)

    busy: set[Spec] = set()
    ours = [(unit, part) for part, unit in unfinished.items()]
    for part in _write_held(holding, ours, write, busy):
        part.is_staged = True
    return busy


def store_text(holding: Holding, units: Collection[Unit]) -> set[Spec]:
    """Store the text of units that have no rows yet: full-text search finds them at once.

    Returns the specs whose table somebody has locked: to be tried again later.
    """
    parts = [(unit, part) for unit in units for part in unit.parts if part.lacks_text]

    def write(spec: Spec, ours: Parts) -> None:
        changes = [store.Change(u.claim.source_pk, part.space.pk, part.plan) for u, part in ours]
        store.apply_text(spec, changes, using=holding.using)

    busy: set[Spec] = set()
    for part in _write_held(holding, parts, write, busy):
        part.has_waiting_text = True
    for unit in units:
        holding.look_at(unit)
    return busy


def _write_held(holding: Holding, parts: Parts, write: Write, busy: set[Spec]) -> Iterator[Part]:
    """Write what is still ours, a spec and a transaction at a time. Yields what was written.

    ``busy`` takes the specs for which somebody has locked a table.
    """
    by_spec: dict[Spec, Parts] = defaultdict(list)
    for unit, part in parts:
        by_spec[unit.spec].append((unit, part))
    for spec, of_spec in by_spec.items():
        try:
            yield from _write_spec(holding, spec, of_spec, write)
        except database.Busy:
            busy.add(spec)


def _write_spec(holding: Holding, spec: Spec, parts: Parts, write: Write) -> Iterator[Part]:
    try:
        # Who waited for a table with jobs in hand would hold up their writers, or meet them.
        with database.giving_way(holding.using, wait=BRIEFLY):
            held = jobs.hold({unit.claim for unit, _ in parts}, using=holding.using)
            ours = [(unit, part) for unit, part in parts if unit.claim.id in held.ours]
            if ours:
                write(spec, ours)
    except DatabaseError as error:
        if faults.is_outage(error):
            raise
        if len(parts) > 1:
            for one in parts:
                yield from _write_spec(holding, spec, [one], write)
        else:
            # One unit's data is at fault. It must not take the worker along.
            holding.retry(parts[0][0], f"{type(error).__name__}: {error}")
        return
    yield from (part for _, part in ours)


def _by_spec(units: Iterable[Unit]) -> dict[Spec, list[Unit]]:
    found: dict[Spec, list[Unit]] = defaultdict(list)
    for unit in units:
        found[unit.spec].append(unit)
    return found


def _planned_without_a_space(units: Sequence[Unit], live: defaultdict[str, set[int]]) -> list[Unit]:
    """Return the units for which a space has been opened since they were planned.

    To complete them would leave a gap, or a stale text, in a space that may be searched
    by now. Where it is opened after this look, the reconciler has yet to fill it.
    """
    return [
        unit
        for unit in units
        if not unit.is_gone and not live[unit.spec.key] <= unit.planned_spaces
    ]


def _write(spec: Spec, units: Sequence[Unit], *, using: str) -> None:
    gone = [unit.claim.source_pk for unit in units if unit.is_gone]
    if gone:
        store.forget(spec, gone, using=using)
    changes = [unit.change(part) for unit in units for part in unit.parts if not part.plan.is_fresh]
    if changes:
        store.apply(spec, changes, using=using)
    staged = [
        unit.claim.source_pk
        for unit in units
        if unit.has_staged or any(part.is_staged for part in unit.parts)
    ]
    if staged:
        store.unstage(spec, staged, using=using)
