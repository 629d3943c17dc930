"""Read the write-ahead log, and enqueue what it says. A chore that lasts as long as its worker.

One worker reads, the server sees to that: a slot is read by one connection at a time. The others
look every second whether it is free. Who gets it takes over the note (``slots``), which keeps a
former reader that was only frozen from writing.

For each batch of committed transactions:

1. wait until they are visible: a commit is in the log before others see it, and with a synchronous
   standby long before. A job that was claimed meanwhile would read the former text.
2. in one transaction enqueue the units, and note the position.
3. confirm the position, so that the server may remove the log before it.

A spec is compared as a whole when its changes begin to be read, and again after any gap.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from django.db import connections

from pgembed_django import events
from pgembed_django.capture import slots
from pgembed_django.capture.reading import Reading, Replaced, compare, switched_back
from pgembed_django.capture.walsender import Refused, Stopped, Walsender
from pgembed_django.core import database, locks
from pgembed_django.events import LogOnce
from pgembed_django.models import publication

LOCK = "pgembed_slot"
"""Held while a slot is made, which takes until all open transactions have ended."""

OBJECT_IN_USE = "55006"
UNDEFINED_OBJECT = "42704"

_told = LogOnce()


class Streamer:
    """Reads the changes of all specs of a database, for as long as the server lets this worker."""

    def __init__(self, *, using: str, is_stopping: Callable[[], bool] = lambda: False) -> None:
        self.using = using
        self.is_stopping = is_stopping
        self._holder = secrets.token_hex(8)

    def stream(self) -> int:
        """Read until the worker stops or the stream ends. Return how many units were enqueued.

        Returns at once if another worker reads, or no spec's changes come from the log.
        """
        return self._stream()

    def compare_switched(self) -> int:
        """Compare what triggers watch by now: the rest of the log may not have been read."""
        name = slots.look(using=self.using).name
        before = slots.noted_specs(name, using=self.using)
        if before and (back := switched_back(before, using=self.using)):
            # Nobody else notes gaps from here on.
            noted = slots.take(name, self._holder, using=self.using)
            try:
                compare(back, using=self.using)
            except database.Busy:
                return 0  # later
            left = {key: mark for key, mark in noted.specs.items() if key not in back}
            slots.cover(name, self._holder, left, using=self.using)
        return 0

    def catch_up(self) -> int:
        """Read what is committed by now, unless another worker reads. Return how many units."""
        if connections[self.using].in_atomic_block:
            return 0  # what the caller has written is not committed
        return self._stream(to_the_end=True)

    def _stream(self, *, to_the_end: bool = False) -> int:
        if not slots.captured(self.using):
            return 0
        seen = slots.look(using=self.using)
        if seen.problem:
            self._refuse(seen, seen.problem)
            return 0
        if seen.is_active:
            return 0
        try:
            with Walsender(using=self.using, is_stopping=self.is_stopping) as sender:
                position = self._position(seen, sender)
                if position is None:
                    return 0
                name = publication.name()
                sender.start(seen.name, publication=name, position=position)
                _told.clear(self.using)
                slots.note_problem(seen.name, "", using=self.using)
                events.tell(events.CAPTURE_STARTED, slot=seen.name)
                reading = Reading(
                    sender, position, slot=seen.name, holder=self._holder, using=self.using
                )
                reading.run(until=seen.end if to_the_end else None)
                return reading.enqueued
        except Refused as error:
            if error.sqlstate == OBJECT_IN_USE:
                return 0  # another worker was faster
            if error.sqlstate == UNDEFINED_OBJECT and "publication" in str(error):
                # It was made later than changes that are yet to be read.
                slots.begin_anew(seen.name, self._holder, using=self.using, position=None)
            self._refuse(seen, f"{error} {slots.lacking_right(using=self.using)}".strip())
        except (Stopped, Replaced):
            """Another worker reads on, or later this one."""
        return 0

    def _refuse(self, seen: slots.Seen, reason: str) -> None:
        if _told.is_new(self.using, reason):
            slots.note_problem(seen.name, reason, using=self.using)
            events.tell(events.CAPTURE_REFUSED, database=self.using, error=reason)

    def _position(self, seen: slots.Seen, sender: Walsender) -> int | None:
        """Return where to begin. Makes the slot if there is none, or if there may be gaps in it."""
        noted = slots.note(seen.name, using=self.using)
        position = noted.position if noted else None
        is_whole = seen.is_there and not seen.is_lost and seen.confirmed <= (position or 0)
        if is_whole and position is not None:
            slots.take(seen.name, self._holder, using=self.using)
            return position
        with locks.session_lock(LOCK, using=self.using) as is_ours:
            # Another worker may have made it since.
            again = slots.look(using=self.using)
            as_seen = (again.is_there, again.confirmed) == (seen.is_there, seen.confirmed)
            if not (is_ours and as_seen):
                return None
            slots.take(seen.name, self._holder, using=self.using)
            slots.begin_anew(seen.name, self._holder, using=self.using, position=None)
            if seen.is_there:
                slots.drop(seen.name, using=self.using)
            made = sender.create(seen.name)
            events.tell(events.SLOT_MADE, slot=seen.name)
            if not slots.begin_anew(seen.name, self._holder, using=self.using, position=made):
                return None
            return made
