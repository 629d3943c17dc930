"""Write what has come of units, in short transactions that hold their jobs and wait for nobody.

What is whole is written in the transaction that completes its job. Before that, vectors are staged
while others are awaited, and text whose vectors are late is stored for full-text search.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile

from django.db import DatabaseError

from pgembed_django import spaces, store
from pgembed_django.core import database, faults
from pgembed_django.core.adapting import AdaptiveSize, halves, isolate
from pgembed_django.core.faults import Fault
from pgembed_django.declaration.specs import Spec
from pgembed_django.embedding.units import Part, State, Unit, Units, by_spec
from pgembed_django.models import Space
from pgembed_django.queue import jobs

LATE_SECONDS = 1.0
"""If a unit's vectors take longer than this, its text is stored first, and written twice."""

LOCKED_SECONDS = 1.0
"""How soon work that can wait is tried again after its table was found locked."""

Parts = Sequence[tuple[Unit, Part]]
Write = Callable[[Spec, Parts, str], None]


def begin(units: Sequence[Unit], *, using: str) -> Callable[[Sequence[Unit]], list[Unit]]:
    """Begin to write whole units. Returns what writes those that are still ours.

    That returns the units that it wrote. The others were planned without a space that is live by
    now: what they have is stored, as it is paid for, and their jobs go on from there.
    """
    dropped = {space_id for unit in units for space_id in unit.dropped_spaces}
    if dropped:
        spaces.put_off_switch(dropped, using=using)
    read_live = spaces.ask_live_states({unit.spec for unit in units}, using=using)

    def write(ours: Sequence[Unit]) -> list[Unit]:
        live = read_live()
        planned = [unit for unit in ours if _has_all_spaces(unit, live[unit.spec.key])]
        for spec, of_spec in by_spec(ours).items():
            _write_units(spec, of_spec, planned, live[spec.key], using=using)
        return planned

    return write


def _has_all_spaces(unit: Unit, live: Mapping[int, spaces.LiveState]) -> bool:
    """Return whether no space was opened or activated after a unit was planned.

    A space that was retired and reopened after that counts as opened. And if its spaces are all
    gone, completing it would leave a gap or a stale text in a space that may be searched by now;
    after a flush of the database it would leave the row to the reconciler. If a space is opened
    after this look, the reconciler has yet to fill it. If one is activated after it, the last look
    of that switch finds the gap.
    """
    searched = {key for key, one in live.items() if one.state == Space.State.ACTIVE}
    return unit.state is State.GONE or (
        bool(live)
        and {(key, one.retired_at) for key, one in live.items()} <= unit.planned_spaces
        and not searched & unit.dropped_spaces
    )


def _write_units(
    spec: Spec,
    units: Sequence[Unit],
    planned: Sequence[Unit],
    live: Mapping[int, spaces.LiveState],
    *,
    using: str,
) -> None:
    gone = [unit.claim.source_pk for unit in units if unit.state is State.GONE]
    if gone:
        store.forget(spec, gone, using=using)
    parts = [part for unit in units for part in unit.parts]
    changed = [part for part in parts if not part.plan.is_fresh and part.is_live(live)]
    if changed:
        store.apply(spec, changed, using=using)
    staged = [
        unit.claim.source_pk
        for unit in units
        # What is staged for a space whose part was dropped saves the job that fills it the work.
        if unit.has_staged and not unit.dropped_spaces and unit in planned
    ]
    if staged:
        store.unstage(spec, staged, using=using)


class Writer:
    """Stores what has come of units that are not whole.

    A transaction takes as many parts as fit into a tenth of a second. What is locked waits for the
    next time. What cannot be written for another reason is left to the transaction that completes
    the job: there the row at fault is found, and is charged.
    """

    def __init__(self, *, units: Units, clock: Callable[[], float]) -> None:
        self.units = units
        self.to_stage: list[tuple[Unit, Part]] = []
        """Parts with vectors of units that need more batches, or are about to be given back."""
        self._clock = clock
        self._size = AdaptiveSize()
        self._not_before: dict[Spec, float] = {}
        self.without_text: dict[int, Unit] = {}
        """The units whose text could be stored before their vectors, the first due first."""

    def watch(self, unit: Unit) -> None:
        """Store a unit's text if its vectors are late."""
        if unit.lacks_text:
            unit.text_due = self._clock() + LATE_SECONDS
            self.without_text[unit.claim.id] = unit

    def drop(self, job_ids: Iterable[int]) -> None:
        """Forget the texts of units that have ended or are lost."""
        for job_id in job_ids:
            self.without_text.pop(job_id, None)

    def keep_whole(self, unit: Unit) -> None:
        """Store the whole parts of a unit, before its job fails or is given back.

        Fresh ones have nothing to store, but those of a former text in other spaces are marked.
        """
        has_former = any(part.waiting and not part.plan.is_new for part in unit.parts)
        self.to_stage += [
            (unit, part)
            for part in unit.parts
            if not part.waiting and (has_former or not part.plan.is_fresh)
        ]

    def set_aside(self, unit: Unit) -> None:
        """Stage the vectors that a unit has, before it is given back because of its table."""
        unit.state = State.SET_ASIDE
        self.to_stage += [(unit, part) for part in unit.parts if part.vectors]

    def save_progress(self) -> None:
        """Persist what batches brought for units that wait for more of them.

        Also for units that are about to end otherwise: their next run resumes there, and parts
        that are whole in one space are stored in it.
        """
        now = self._clock()
        later: list[tuple[Unit, Part]] = []
        unfinished: dict[Part, Unit] = {}
        whole: dict[Part, Unit] = {}
        for unit, part in self.to_stage:
            if unit.state is State.STORED:
                continue  # in this round, in which the last of its vectors came
            if self._not_before.get(unit.spec, now) > now:
                later.append((unit, part))
            elif part.waiting or unit.state is State.SET_ASIDE:
                unfinished[part] = unit
            elif unit not in self.units:  # or it is stored with the unit
                whole[part] = unit
        left = self._write(_stage, [(unit, part) for part, unit in unfinished.items()])
        left += self._write(_apply_whole, [(unit, part) for part, unit in whole.items()])
        self.to_stage = later + left

    def store_late_texts(self) -> None:
        """Store the text of units that are late."""
        now = self._clock()
        late = takewhile(lambda unit: unit.text_due <= now, self.without_text.values())
        if units := list(late):
            self.store_text(units)

    def store_text(self, units: Sequence[Unit]) -> None:
        """Store the text of units that have no rows yet: full-text search finds them at once."""
        lacking = [unit for unit in units if unit.lacks_text]
        parts = [(unit, part) for unit in lacking for part in unit.parts if part.lacks_text]
        left = self._write(_store_text, parts)
        self.drop(unit.claim.id for unit in units)
        for unit, _ in left:
            if unit in self.units:
                unit.text_due = self._clock() + LOCKED_SECONDS
                self.without_text[unit.claim.id] = unit

    def _write(self, write: Write, parts: Parts) -> list[tuple[Unit, Part]]:
        """Write the parts that are still ours, one spec per transaction. Returns those locked."""
        left: list[tuple[Unit, Part]] = []
        of_specs: dict[Spec, deque[tuple[Unit, Part]]] = defaultdict(deque)
        for unit, part in parts:
            of_specs[unit.spec].append((unit, part))
        for spec, rest in of_specs.items():
            while rest:
                some = [rest.popleft() for _ in range(min(self._size.size, len(rest)))]
                started = time.perf_counter()
                try:
                    isolate(partial(self._attempt, write, spec, left), some)
                except _TooSlow:
                    left += rest
                    break
                except database.Busy:
                    left += [*some, *rest]
                    if write is not _store_text:  # which has a due time of its own
                        self._not_before[spec] = self._clock() + LOCKED_SECONDS
                    break
                self._size.took(time.perf_counter() - started, len(some))
        return left

    def _attempt(
        self, write: Write, spec: Spec, left: list[tuple[Unit, Part]], parts: Parts
    ) -> list[Parts]:
        """Write parts of one spec. Returns the groups to write instead, after an error.

        Adds those whose jobs an open writer has locked to ``left``.
        """
        using = self.units.using
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
                    write(spec, ours, using)
        except DatabaseError as error:
            match faults.of(error):
                case Fault.OUTAGE | Fault.OURS:
                    raise
                case Fault.TOO_SLOW if len(parts) > 1:
                    self._size.failed(len(parts))
                    raise
                case Fault.TOO_SLOW:
                    raise _TooSlow from error
                case Fault.SCHEMA | Fault.PASSING if not store.is_fit(spec, using=using):
                    self.units.quarantine(spec, error)
                case _ if len(parts) > 1:
                    return halves(parts)
            return self._attempt(_stage, spec, left, parts) if write is _apply_whole else []
        for unit, part in ours:
            unit.has_staged |= write is _stage
            part.has_waiting_text |= write is _store_text
        left += [(unit, part) for unit, part in parts if unit.claim.id in held.locked]
        return []


class _TooSlow(Exception):
    """One part alone took too long. It is not tried again, and the others later."""


def _stage(spec: Spec, ours: Parts, using: str) -> None:
    store.stage(spec, [part for _, part in ours], using=using)
    progress = {unit.claim.id: (unit.chunks_done, unit.chunks) for unit, _ in ours}
    jobs.note_progress(progress, using=using)


def _apply_whole(spec: Spec, ours: Parts, using: str) -> None:
    store.apply(spec, [part for _, part in ours], using=using)
    others = [other for unit, _ in ours for other in unit.parts if other.waiting]
    active = {part.space_id for part in others if part.space.state == Space.State.ACTIVE}
    store.mark_overtaken(spec, others, active=active, using=using)


def _store_text(spec: Spec, ours: Parts, using: str) -> None:
    store.apply_text(spec, [part for _, part in ours], using=using)
