"""One stream: from the position that was noted to its end. See ``streamer`` for the whole way."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from django.db import DatabaseError
from django.db.models.functions import Now

from pgembed_django import events
from pgembed_django.capture import calls, pgoutput, slots
from pgembed_django.capture.batches import Batch, Gatherer, Snapshot, Step, Target
from pgembed_django.capture.walsender import Stopped, Walsender
from pgembed_django.core import database, faults, postgres
from pgembed_django.core.adapting import AdaptiveSize, doubled, halves
from pgembed_django.core.faults import Fault
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.spaces import reconcile
from pgembed_django.triggers import installed

SETTLE_SECONDS = 30.0
"""How often to look whether all tables are published still."""

JOIN_SECONDS = 10.0
"""How long a drain waits for transactions that began before a table was published."""

NOTE_SECONDS = 10.0
"""How often to note the position while there is nothing to enqueue."""

PAUSE_SECONDS = 0.005
"""How long to let the server go on, after it has sent nothing but how far it is.

It does so at each commit that is of no interest. To wake up for each would cost as much as to
enqueue.
"""

UNSEEN_SECONDS = 0.002
MAX_UNSEEN_SECONDS = 0.1
"""How long to wait for transactions that are committed and not yet visible."""

BUSY_SECONDS = 0.01
MAX_BUSY_SECONDS = 1.0
"""How long to wait for jobs that others have locked."""

FIRST_STEPS = 1000
MOST_STEPS = 5000
"""How many units to enqueue in one transaction."""

SNAPSHOT = "SELECT pg_current_snapshot()::text"

NUMBER = "SELECT pg_current_xact_id()::text"


class Replaced(Exception):
    """Another worker reads by now."""


class Reading:
    """One stream: from the position that is noted to its end."""

    def __init__(
        self, sender: Walsender, position: int, *, slot: str, holder: str, using: str
    ) -> None:
        self.sender = sender
        self.position = position
        """All that was committed before it is enqueued, which is noted and confirmed."""
        self.slot = slot
        self.holder = holder
        self.using = using
        self.enqueued = 0
        """How many units, and tables as a whole, were enqueued or forgotten."""
        self._size = AdaptiveSize(FIRST_STEPS, most=MOST_STEPS)
        self._gatherer = Gatherer()
        self._joining: dict[str, tuple[str, int]] = {}
        """Specs whose changes are published, and the first transaction that may have begun since.

        Before that one is the oldest, transactions are open that began before.
        """
        self._arrived = position
        """All before it has come."""
        self._noted_at = float("-inf")
        self._settled_at = float("-inf")

    def run(self, *, until: int | None) -> None:
        """Read until the worker stops, or up to a position of the log.

        At that, it waits a while for transactions that keep a spec from being compared.

        Raises:
            Refused: the server has ended the stream.
            Stopped: the worker stops.
        """
        ends_at = time.monotonic() + JOIN_SECONDS
        while True:
            if self.sender.is_stopping():
                raise Stopped
            if time.monotonic() >= self._settled_at + SETTLE_SECONDS or self._joining:
                self._settle()
            before = self._arrived
            for piece in self.sender.pieces():
                self._take(piece)
                if self._gatherer.batch.is_full:
                    self._flush()
                    break  # look whether the worker is to stop
            else:
                if self._gatherer.batch.position is not None:
                    self._flush()
                elif self._arrived > before:
                    time.sleep(PAUSE_SECONDS)
            if not self._gatherer.is_inside:
                self._note_idle(is_last=until is not None and self._arrived >= until)
            self.sender.keep_alive(self.position)
            is_joining = self._joining and time.monotonic() < ends_at
            if until is not None and self.position >= until and not is_joining:
                return

    def _take(self, piece: memoryview) -> None:
        try:
            message = pgoutput.parse(piece)
        except pgoutput.Malformed as error:
            events.tell(events.MESSAGE_IGNORED, text=str(error))
            return
        match message:
            case None:
                return
            case pgoutput.Keepalive(end, wants_reply):
                if not self._gatherer.is_inside:
                    self._arrived = max(self._arrived, end)
                if wants_reply:
                    self.sender.confirm(self.position)
            case pgoutput.Relation():
                self._describe(message)
            case _:
                self._gatherer.take(message)

    def _describe(self, relation: pgoutput.Relation) -> None:
        watching = slots.oids_of(slots.captured(self.using), using=self.using)
        found = watching.get(relation.oid, [])
        if not found:
            self._leave_unknown()
        columns = {_target(spec): str(spec.model._meta.pk.column) for spec in found}
        self._gatherer.describe(relation, columns)

    # What is read without a gap

    def _settle(self) -> None:
        """Note which specs' changes are published, and have those compared that are new."""
        declared = slots.captured(self.using)
        published = slots.published(declared, using=self.using)
        before = slots.noted_specs(self.slot, using=self.using)
        # What has gaps is kept: once it is published or has triggers again, it is to be compared.
        covered = before | {
            spec.key: None
            for spec in declared
            if spec.key in before and published.get(spec.key) != before[spec.key]
        }
        back = switched_back(before, using=self.using)
        new = {key: mark for key, mark in published.items() if covered.get(key) is None}
        following = self._following() if new.keys() - self._joining else 0
        self._joining = {
            key: self._joining.get(key, (mark, following)) for key, mark in new.items()
        }
        oldest = self._snapshot().oldest
        ready = {key: mark for key, (mark, since) in self._joining.items() if oldest >= since}
        for key in [key for key, mark in before.items() if mark != covered[key]]:
            events.tell(events.CAPTURE_LOST, spec=key)
        covered = {key: mark for key, mark in covered.items() if key not in back}
        covered.update(ready)
        self._settled_at = time.monotonic()
        if covered != before:
            try:
                compare([*ready, *back], using=self.using)
            except database.Busy:
                return  # the next look is soon enough: all of that is still there
            self._cover(covered)
        self._joining = {key: one for key, one in self._joining.items() if key not in ready}

    def _following(self) -> int:
        """Return a transaction's number that is higher than that of any which has written.

        That of a snapshot is not: it ends behind the last transaction that has ended.
        """
        [[number]] = database.rows(self.using, NUMBER)
        return int(number)

    def _leave_unknown(self) -> None:
        """Note that there are gaps in all that this code does not read: newer code may."""
        before = slots.noted_specs(self.slot, using=self.using)
        captured = {spec.key for spec in slots.captured(self.using)}
        left = {key: mark if key in captured else None for key, mark in before.items()}
        if left != before:
            self._cover(left)

    def _cover(self, covered: Mapping[str, str | None]) -> None:
        if not slots.cover(self.slot, self.holder, covered, using=self.using):
            raise Replaced

    # Batches

    def _flush(self) -> None:
        """Enqueue the batch, note the position, and confirm it."""
        batch = self._gatherer.batch
        self._wait_until_visible(batch.xids)
        todo, done = list(batch.steps()), 0
        while done < len(todo) or not done:
            page = todo[done : done + self._size.size]
            done += max(1, len(page))
            started = time.perf_counter()
            self._enqueue(page, batch if done >= len(todo) else None)
            self._size.took(time.perf_counter() - started, len(page))
        if batch.position is not None:
            self._confirm(batch.position)
        self._gatherer.flushed()

    def _wait_until_visible(self, xids: Iterable[int]) -> None:
        left, wait = set(xids), 0.0
        while True:
            snapshot = self._snapshot()
            left = {xid for xid in left if not snapshot.shows(xid)}
            if not left:
                return
            wait = doubled(wait, first=UNSEEN_SECONDS, most=MAX_UNSEEN_SECONDS)
            self._rest(wait)

    def _snapshot(self) -> Snapshot:
        [[text]] = database.rows(self.using, SNAPSHOT)
        return Snapshot.parse(text)

    def _enqueue(self, page: Sequence[Step], last_of: Batch | None) -> None:
        """Enqueue a page in one transaction. With the last of a batch, note how far it goes."""
        wait = 0.0
        while True:
            try:
                with database.giving_way(self.using):
                    self._note(last_of.position if last_of else None, last_of and last_of.read_at)
                    for (verb, target), steps in groupby(page, key=itemgetter(0, 1)):
                        calls.make(verb, target, [key for *_, key in steps], using=self.using)
            except database.Busy:
                wait = doubled(wait, first=BUSY_SECONDS, most=MAX_BUSY_SECONDS)
                self._rest(wait)
            except DatabaseError as error:
                fault = faults.of(error)
                if fault is Fault.OUTAGE:
                    raise
                if fault in {Fault.TOO_SLOW, Fault.PASSING}:
                    self._size.failed(len(page))
                    self._rest(BUSY_SECONDS)
                elif len(page) < 2:
                    # Anybody may write such a message. It must not keep all others waiting.
                    events.tell(events.MESSAGE_IGNORED, text=faults.said(error))
                    page = ()
                if parts := halves(page):
                    for part in parts:
                        self._enqueue(part, last_of if part is parts[-1] else None)
                    return
            else:
                self.enqueued += len(page)
                return

    # Positions

    def _note_idle(self, *, is_last: bool) -> None:
        """Note now and then that nothing was to be enqueued up to here."""
        is_due = time.monotonic() >= self._noted_at + NOTE_SECONDS and self._arrived > self.position
        if is_due or is_last:
            is_at_end = slots.look(using=self.using).end - self._arrived < slots.AT_ONCE
            self._note(self._arrived, Now() if is_at_end else None)
            self._confirm(self._arrived)

    def _note(self, position: int | None, read_at: Any) -> None:
        ours = slots.advance(
            self.slot, self.holder, using=self.using, position=position, read_at=read_at
        )
        if not ours:
            raise Replaced

    def _confirm(self, position: int) -> None:
        self.position = position
        self._arrived = max(self._arrived, position)
        self._noted_at = time.monotonic()
        self.sender.confirm(position)

    def _rest(self, seconds: float) -> None:
        self.sender.keep_alive(self.position)
        if self.sender.is_stopping():
            raise Stopped
        time.sleep(seconds)


def compare(keys: Iterable[str], *, using: str) -> None:
    """Have all rows of some specs compared with their vectors.

    Raises:
        database.Busy: others have locked what is to be written. Try again.
    """
    for key in keys:
        if spec := specs.get(key):
            reconcile.compare_anew(spec, using=using)
            events.tell(events.COMPARING_ALL, spec=key)


def switched_back(noted: Iterable[str], *, using: str) -> list[str]:
    """Return those of the noted specs that are watched by triggers now, which are installed."""
    declared = [spec for key in noted if (spec := specs.get(key)) and not spec.is_read_from_log]
    if not declared:
        return []
    drifted = installed.drifted([spec.key for spec in declared], using=using)
    return [spec.key for spec in declared if "missing" not in drifted.get(spec.key, {})]


def _target(spec: Spec) -> Target:
    return Target(spec.key, spec.priority, postgres.quoted_table(spec.embedding_model))
