"""Write what has come of units, in short transactions that hold their jobs and wait for nobody.

What is whole is written in the transaction that completes its job. Before that, text whose vectors
are late is stored for full-text search, and vectors are staged while others are awaited.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

from django.db import DatabaseError

from pgembed_django import database, faults, spaces, store
from pgembed_django.embedding.units import Part, Quarantine, Unit, Units, by_spec
from pgembed_django.faults import Fault
from pgembed_django.models import Space
from pgembed_django.queue import jobs
from pgembed_django.queue.completing import Portion
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


LOCKED_SECONDS = 1.0
"""How soon work that can wait is tried again after its table was found locked."""


class Locked:
    """Knows how long to leave each alone. The other specs go on."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[Spec, float] = {}

    def __contains__(self, spec: Spec) -> bool:
        return self.until(spec) > self._clock()

    def __bool__(self) -> bool:
        return bool(self._until)

    def until(self, spec: Spec) -> float:
        """Return when to try a spec again, by the clock. Long ago: at once."""
        return self._until.get(spec, float("-inf"))

    def add(self, specs: Iterable[Spec]) -> None:
        """Leave specs alone from now on. Forget those whose time is over."""
        now = self._clock()
        self._until = {spec: until for spec, until in self._until.items() if until > now}
        self._until |= dict.fromkeys(specs, now + LOCKED_SECONDS)


Parts = list[tuple[Unit, Part]]


class Write(NamedTuple):
    """What a transaction writes of parts, and what to note for each once it commits."""

    run: Callable[[Spec, Parts, str], None]
    note: Callable[[Part], None] = lambda _: None


class Left(NamedTuple):
    """What could not be written, and is to be tried again."""

    specs: set[Spec]
    """Their tables are locked."""
    parts: Parts
    """Open writers have locked their jobs."""


class Staging:
    """Stores what has come of units that are not whole.

    The text before any vector comes; then vectors, before the last have come. A transaction takes
    as many units as fit into a tenth of a second. Units that could not be written wait for the
    next time: fewer at once, if they took too long.
    """

    def __init__(
        self, *, holding: Units, quarantine: Quarantine, clock: Callable[[], float]
    ) -> None:
        self.holding = holding
        self.quarantine = quarantine
        self._locked = Locked(clock=clock)
        self._portion = Portion()

    def stage(self) -> None:
        """Persist what batches brought for units that wait for more of them.

        Also for units that are about to end otherwise: their next run resumes there, and parts
        that are whole in one space are stored in it. Locked ones are kept for a later try.
        """
        if self._stage():
            self._stage()  # Not in the next round: these jobs end before it.

    def _stage(self) -> bool:
        """Try it once. Return whether a spec was set aside meanwhile, with parts to stage."""
        later: Parts = []
        tried: Parts = []
        known = len(self.holding.to_stage)
        for one in self.holding.to_stage:
            if one[0].is_stored:
                continue  # in this round, in which the last of its vectors came
            (later if one[0].spec in self._locked else tried).append(one)
        if not tried:
            return False
        unfinished: dict[Part, Unit] = {}
        whole: dict[Part, Unit] = {}
        for unit, part in tried:
            if part.waiting or unit.is_set_aside:
                unfinished[part] = unit
            elif unit not in self.holding:  # or it is stored with the unit
                whole[part] = unit
        left = [
            self._write(STAGE, [(unit, part) for part, unit in unfinished.items()]),
            self._write(APPLY, [(unit, part) for part, unit in whole.items()]),
        ]
        busy = {spec for one in left for spec in one.specs}
        self._locked.add(busy)
        # Not those that are locked now: by some, the time may just have run out.
        later += [one for one in tried if one[0].spec in busy]
        later += [part for one in left for part in one.parts if part[0].spec not in busy]
        of_set_aside = self.holding.to_stage[known:]
        self.holding.to_stage = later + of_set_aside
        return bool(of_set_aside)

    def store_text(self, units: Collection[Unit]) -> set[Spec]:
        """Store the text of units that have no rows yet: full-text search finds them at once.

        Returns the specs whose table somebody has locked: try those again later.
        """
        parts = [(unit, part) for unit in units for part in unit.parts if part.lacks_text]
        left = self._write(STORE_TEXT, parts)
        for unit in units:
            self.holding.look_at(unit)
        return left.specs

    def _write(self, write: Write, parts: Parts) -> Left:
        """Write the parts that are still ours, one spec per transaction."""
        left = Left(set(), [])
        by_spec: dict[Spec, deque[tuple[Unit, Part]]] = defaultdict(deque)
        for unit, part in parts:
            by_spec[unit.spec].append((unit, part))
        for spec, rest in by_spec.items():
            try:
                while rest:
                    some = [rest.popleft() for _ in range(min(self._portion.size, len(rest)))]
                    started = time.perf_counter()
                    left.parts.extend(self._write_some(write, spec, some))
                    self._portion.adapt(len(some), seconds=time.perf_counter() - started)
            except database.Busy:
                left.specs.add(spec)
        return left

    def _write_some(
        self, write: Write, spec: Spec, parts: Parts, *, is_again: bool = False
    ) -> Parts:
        """Write parts of one spec. Returns those whose jobs an open writer has locked.

        ``is_again``: this part has just failed alone.
        """
        using = self.holding.using
        try:
            # Waiting for a table while holding jobs would block their writers, or deadlock.
            with database.giving_way(using, wait=database.BRIEFLY):
                live = spaces.ask_live_states([spec], using=using)()[spec.key]
                held = jobs.hold({unit.claim for unit, _ in parts}, using=using)
                ours = [
                    (unit, part)
                    for unit, part in parts
                    if unit.claim.id in held.ours and part.is_live(live)
                ]
                if ours:
                    write.run(spec, ours, using)
        except DatabaseError as error:
            match faults.of(error):
                case Fault.OUTAGE | Fault.OURS:
                    raise
                case Fault.TOO_SLOW if len(parts) > 1:
                    self._portion.halve(len(parts))
                    raise
                case Fault.SCHEMA | Fault.PASSING if not store.is_fit(spec, using=using):
                    self.quarantine.add(spec, error)
                    self.quarantine.give_back({unit for unit, _ in parts})
                case _ if len(parts) > 1:
                    return [left for one in parts for left in self._write_some(write, spec, [one])]
                case Fault.TOO_SLOW | Fault.SCHEMA | Fault.PASSING if not is_again:
                    return self._write_some(write, spec, parts, is_again=True)
                case _ if faults.is_nobodys(error):
                    self.holding.put_off(
                        parts[0][0], f"{type(error).__name__}: {faults.said(error)}"
                    )
                case fault:
                    # One unit's data is at fault. It must not stop the worker.
                    self.holding.retry(parts[0][0], f"{type(error).__name__}: {faults.said(error)}")
                    if fault is Fault.TOO_SLOW:
                        raise database.Busy from error  # the others later: it took long
            return []
        for _, part in ours:
            write.note(part)
        return [(unit, part) for unit, part in parts if unit.claim.id in held.locked]


def _stage_vectors(spec: Spec, ours: Parts, using: str) -> None:
    store.stage(spec, [unit.change(part) for unit, part in ours], using=using)
    progress = {unit.claim.id: (unit.chunks_done, unit.chunks) for unit, _ in ours}
    jobs.note_progress(progress, using=using)


def _note_staged(part: Part) -> None:
    part.is_staged = True


def _apply_whole(spec: Spec, ours: Parts, using: str) -> None:
    store.apply(spec, [unit.change(part) for unit, part in ours], using=using)
    others = [(unit, other) for unit, _ in ours for other in unit.parts if other.waiting]
    store.mark_overtaken(
        spec,
        [unit.change(other) for unit, other in others],
        active={other.space.pk for _, other in others if other.space.state == Space.State.ACTIVE},
        using=using,
    )


def _store_text(spec: Spec, ours: Parts, using: str) -> None:
    changes = [store.Change(unit.claim.source_pk, part.space.pk, part.plan) for unit, part in ours]
    store.apply_text(spec, changes, using=using)


def _note_text(part: Part) -> None:
    part.has_waiting_text = True


STAGE = Write(_stage_vectors, _note_staged)
APPLY = Write(_apply_whole)
STORE_TEXT = Write(_store_text, _note_text)


LATE_SECONDS = 0.1
"""If a unit's vectors take longer than this, its text is stored first."""

MAX_LATE_SECONDS = 1.0
"""The longest wait while answers keep coming: its own may be next, and text that is stored early
is written twice."""


class EarlyText:
    """Watches how long units wait for their vectors, and stores the text of late ones."""

    def __init__(self, *, holding: Units, staging: Staging, clock: Callable[[], float]) -> None:
        self.holding = holding
        self._staging = staging
        self._clock = clock
        self._answered_at = float("-inf")
        self._locked = Locked(clock=clock)

    def answered(self) -> None:
        """Note that vectors have come and were handled."""
        self._answered_at = self._clock()

    def step(self) -> None:
        """Store the text of units that are late."""
        now = self._clock()
        waiting = self.holding.without_text.values()
        late = takewhile(lambda unit: self._due_at(unit) <= now, waiting)
        units = [unit for unit in late if unit.spec not in self._locked]
        if units:
            self._locked.add(self._staging.store_text(units))

    def due_seconds(self) -> float | None:
        """Return in how many seconds the next unit's text is due."""
        waiting = iter(self.holding.without_text.values())
        # The first is the oldest. Only if a table is locked may another be due before it.
        first = waiting if self._locked else islice(waiting, 1)
        due = min(map(self._tried_at, first), default=None)
        return None if due is None else due - self._clock()

    def _tried_at(self, unit: Unit) -> float:
        return max(self._due_at(unit), self._locked.until(unit.spec))

    def _due_at(self, unit: Unit) -> float:
        flows_until = self._answered_at + LATE_SECONDS
        latest = unit.started + MAX_LATE_SECONDS
        return max(unit.started + LATE_SECONDS, min(flows_until, latest))
