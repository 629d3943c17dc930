"""Gather what committed transactions have written, until it is enqueued. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple

from pgembed_django.capture.pgoutput import Begin, Change, Commit, Emitted, Relation, Truncate

MOST_KEYS = 10_000
"""How many units to gather. A larger transaction is enqueued in several."""


Verb = Literal["enqueue", "forget", "forget_all"]


class Target(NamedTuple):
    """Which jobs a change leads to: a spec with its priority, and the table of its vectors."""

    spec: str
    priority: int
    table: str


Step = tuple[Verb, Target, str]
"""What is to be called for a unit. Of ``forget_all`` the key is empty."""


@dataclass(slots=True)
class Units:
    """What was written of one spec's rows.

    ``all_gone``: its table was truncated, before all the rest. ``forgotten`` are units whose rows
    are gone, or were when they were written: vectors are deleted at once. ``written`` are to be
    looked at.
    """

    all_gone: bool = False
    forgotten: dict[str, None] = field(default_factory=dict)
    written: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Batch:
    """The changes since the last flush.

    The order of changes of one unit does not matter: whatever it was, a pending job is left, whose
    worker reads the row as it is then.
    """

    units: defaultdict[Target, Units] = field(default_factory=lambda: defaultdict(Units))
    xids: set[int] = field(default_factory=set)
    """The transactions, as 32-bit numbers."""
    keys: int = 0
    position: int | None = None
    """The end of the last whole transaction in it."""
    read_at: datetime | None = None
    """When that was committed."""

    @property
    def is_full(self) -> bool:
        """Whether it has to be flushed, be it in the middle of a transaction."""
        return self.keys >= MOST_KEYS

    def steps(self) -> Iterator[Step]:
        """Yield what is to be done for its units, in this order."""
        for target, units in self.units.items():
            if units.all_gone:
                yield "forget_all", target, ""
            yield from (("forget", target, key) for key in units.forgotten)
            yield from (("enqueue", target, key) for key in units.written)

    def forget(self, target: Target, key: str) -> None:
        """Note that a row is gone."""
        self.units[target].forgotten[key] = None
        self.keys += 1

    def write(self, target: Target, key: str) -> None:
        """Note that a row was written."""
        self.units[target].written[key] = None
        self.keys += 1

    def forget_all(self, target: Target) -> None:
        """Note that all rows are gone. What was noted of them before is of no interest."""
        self.units[target] = Units(all_gone=True)
        self.keys += 1


class Gatherer:
    """Turns the messages of a stream into batches."""

    def __init__(self) -> None:
        self.batch = Batch()
        self.is_inside = False
        """Whether a transaction has begun and not ended."""
        self.tables: dict[int, Mapping[Target, int]] = {}
        """Who watches each table, and which of its published columns is their key."""
        self._xid = 0

    def describe(self, relation: Relation, watching: Mapping[Target, str]) -> None:
        """Note who watches a table, and by which column."""
        columns = list(relation.columns)
        # The log may be older than a renaming. Usually only the key is published.
        others = [*relation.identity, *columns]
        self.tables[relation.oid] = {
            target: columns.index(column if column in columns else others[0])
            for target, column in watching.items()
        }

    def take(self, message: Begin | Commit | Change | Truncate | Emitted) -> None:
        """Note what a message says."""
        batch = self.batch
        match message:
            case Change(oid, former, new):
                for target, column in self.tables[oid].items():
                    before = former[column] if former else None
                    after = new[column] if new else None
                    if before is not None and before != after:
                        batch.forget(target, before)
                    if after is not None:
                        batch.write(target, after)
            case Begin(xid):
                self.is_inside, self._xid = True, xid
                batch.xids.add(xid)
            case Commit(end, at):
                self.is_inside = False
                batch.position, batch.read_at = end, at
            case Emitted():
                target = Target(message.spec, message.priority, message.table)
                if message.verb == "forget_all":
                    batch.forget_all(target)
                note = batch.forget if message.verb == "forget" else batch.write
                for key in message.keys:
                    note(target, key)
            case Truncate(oids):
                for oid in oids:
                    for target in self.tables[oid]:
                        batch.forget_all(target)

    def flushed(self) -> None:
        """Begin the next batch."""
        self.batch = Batch()
        if self.is_inside:
            self.batch.xids.add(self._xid)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of Postgres, of the transactions whose writes are visible."""

    oldest: int
    next: int
    in_progress: frozenset[int]

    @staticmethod
    def parse(text: str) -> Snapshot:
        """Return it, given what ``pg_current_snapshot`` returns as text."""
        oldest, following, in_progress = text.split(":")
        numbers = frozenset(int(one) for one in in_progress.split(",") if one)
        return Snapshot(int(oldest), int(following), numbers)

    def shows(self, xid: int) -> bool:
        """Return whether a transaction that has written a commit record is visible.

        ``xid`` is its 32-bit number, as the write-ahead log has it, less than 2^31 away.
        """
        # A snapshot ends behind the last transaction that has ended: several may wait behind it.
        ahead = (xid - self.next) % 2**32
        if ahead < 2**31:
            return False
        return self.next + ahead - 2**32 not in self.in_progress
