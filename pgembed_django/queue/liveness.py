"""What others see of a worker: its row in the database, and whether its loop is stuck.

A loop is stuck that makes no rounds and waits for nothing. Other threads ask the providers, so the
loop goes on meanwhile. A loop that waits for the database is not stuck, as a restart would not
help. But a proxy with a broken route may keep a connection, acknowledge what is sent, and pass
nothing on: TCP finds nothing wrong. So where a new connection works, such a wait ends the worker.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from django.db import DatabaseError, InterfaceError, connections
from django.db.models.functions import Now

from pgembed_django import __version__, events
from pgembed_django.core import database, postgres
from pgembed_django.core.text import clean, encodable
from pgembed_django.core.threads import OurThread
from pgembed_django.core.user_code import Call, progress_of
from pgembed_django.models.operations import Worker as WorkerRow
from pgembed_django.queue.handler import Hindrances
from pgembed_django.queue.listener import IdleWait

if TYPE_CHECKING:
    from pgembed_django.queue.work import Work

LATE_SECONDS = 20.0
"""After so long without an update by the loop, the watchdog updates the worker's row."""

DATABASE = ("psycopg", "psycopg_c", "psycopg_binary", "psycopg_pool")
LOOK_SECONDS = 5.0
WAITED_SECONDS = 15.0
"""How long the loop waits for the database at least, before that may end the worker. Its sessions'
own time-outs, which end locks and transactions, come first: see ``sessions``."""
EXPLAINED_SECONDS = 10.0
"""How long at most a stuck worker still tells a probe why, before it gives up."""
GIVE_UP_SECONDS = 10.0
"""How long a stuck worker has to give its jobs back before it ends."""
STUCK = 1
"""The exit status of a worker that is stuck."""


class WorkerRecord:
    """One worker's row, from its start to its end. Its key is the worker's id."""

    def __init__(self, specs: Sequence[str], *, using: str) -> None:
        self.using = using
        row = WorkerRow(
            host=socket.gethostname(), pid=os.getpid(), version=__version__, specs=[*specs]
        )
        # bulk_create() sends no signals: an error in a receiver must not end the worker.
        [self.row] = WorkerRow.objects.using(using).bulk_create([row])
        self._logged = 0
        self._logged_at = self._updated_at = time.monotonic()

    def __str__(self) -> str:
        return str(self.row)

    @property
    def is_late(self) -> bool:
        """Whether the loop has been too busy to update the row."""
        return time.monotonic() - self._updated_at > LATE_SECONDS

    def report(self, works: Sequence[Work]) -> None:
        """Update the row, and log how many units were completed since the last report, if any."""
        if not self.update(works):
            # Another worker took this one, frozen or cut off, for dead. Or there was a flush.
            WorkerRow.objects.using(self.using).bulk_create([self.row])
            self.update(works)
        completed = sum(work.completed for work in works)
        done, seconds = completed - self._logged, time.monotonic() - self._logged_at
        if done:
            holds = sum(len(work.held.jobs) for work in works)
            events.tell(events.WORKER_PROGRESS, jobs=done, seconds=seconds, holds=holds)
        self._logged, self._logged_at = completed, time.monotonic()

    def update(self, works: Sequence[Work]) -> bool:
        """Update the row. Return whether it is there. Any thread may call it."""
        found = hindrances(works)
        state: dict[str, Any] = {
            "last_seen_at": Now(),
            "holds": sum(len(work.held.jobs) for work in works),
            "paused": self._encodable(found.paused),
            "paused_seconds": found.paused_seconds,
            "aside": self._encodable(found.quarantined),
            "executors": self._encodable(
                [dict(one) for work in works for one in work.handler.executors()]
            ),
        }
        self._updated_at = time.monotonic()
        return bool(WorkerRow.objects.using(self.using).filter(pk=self.row.pk).update(**state))

    def end(self) -> None:
        """Delete the row."""
        WorkerRow.objects.using(self.using).filter(pk=self.row.pk).delete()

    def _encodable(self, value: Any) -> Any:
        """Return a value as jsonb can store it: it takes every escape only in UTF-8."""
        return value if postgres.encoding(self.using) == "UTF8" else _in_ascii(value)


def hindrances(works: Sequence[Work], *, for_people: bool = False) -> Hindrances:
    """Return what keeps a worker from some of its jobs."""
    total = Hindrances()
    for work in works:
        found = work.handler.hindrances(for_people=for_people)
        total.paused |= {what: clean(why) for what, why in found.paused.items()}
        total.paused_seconds |= found.paused_seconds
        total.quarantined |= {what: clean(why) for what, why in found.quarantined.items()}
    return total


def _in_ascii(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value, "ascii")
    if isinstance(value, dict):
        return {what: _in_ascii(one) for what, one in value.items()}
    return [_in_ascii(one) for one in value] if isinstance(value, (list, tuple)) else value


class Stuck(NamedTuple):
    """How long the loop has been at a line of code, and whether it waits for the database there."""

    seconds: float
    where: str
    is_in_database: bool


class Liveness:
    """Knows when the loop began its last round. Other threads ask it."""

    def __init__(
        self, *, stuck_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stuck_seconds = stuck_seconds
        self._clock = clock
        self.loop: int | None = None
        """The loop's thread. The worker sets it, and the next one."""
        self.round_began_at: float | None = None
        """None before the first round, and after the last one."""

    @property
    def call(self) -> Call | None:
        """The call of a project's code that the loop is in, if it is in one."""
        return None if self.loop is None else progress_of(self.loop).call

    @property
    def age_seconds(self) -> float:
        """The time since the loop's last round began. Zero before the first and after its end."""
        began_at = self.round_began_at
        return 0.0 if began_at is None else self._clock() - began_at

    def stuck(self) -> Stuck | None:
        """Return where the loop is stuck, if it is. Waiting for the database does not count."""
        late = self.late()
        return None if late is None or late.is_in_database else late

    def late(self) -> Stuck | None:
        """Return where the loop is, if its round takes too long and it does not wait for jobs."""
        if not self.stuck_seconds or self.loop is None:
            return None
        # Slow code for each of many rows moves on, too.
        late_by = min(self.age_seconds, self._clock() - progress_of(self.loop).since)
        if late_by <= self.stuck_seconds:
            return None
        innermost = sys._current_frames().get(self.loop)  # noqa: SLF001 - documented
        frames = [frame for frame, _ in traceback.walk_stack(innermost)] if innermost else []
        if not frames or frames[0].f_code is IdleWait.wait.__code__:
            return None
        is_in_database = any(_module(one).partition(".")[0] in DATABASE for one in frames)
        if is_in_database and late_by <= WAITED_SECONDS:
            return None
        return Stuck(late_by, _where(frames), is_in_database)


class Watched(Protocol):
    """What the watchdog sees of a worker, from other threads."""

    using: str
    liveness: Liveness
    works: list[Work]
    record: WorkerRecord | None

    @property
    def is_cut_off(self) -> bool:
        """Whether the database did not answer the last time."""


class Watchdog:
    """Looks every few seconds. Logs when the loop is stuck; touches a file while it is not.

    If the loop is only busy, it updates the worker's row. If it stays stuck, the worker gives its
    jobs back, and the process ends, as a thread cannot be stopped: its supervisor starts it again.
    ``ends_process``: False in a program of somebody's own.
    """

    def __init__(
        self, worker: Watched, *, file: Path | None = None, ends_process: bool = False
    ) -> None:
        self._worker = worker
        self._file = file
        self._ends_process = ends_process
        self._asking: dict[str, threading.Thread] = {}
        self._is_stuck = False
        self._is_given_back = self._has_given_up = False
        self._is_file_lost = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pgembed-watchdog", daemon=True)

    def __enter__(self) -> None:
        self.look()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        if self._file:
            with suppress(OSError):
                self._file.unlink()

    def look(self) -> None:
        """Look once."""
        liveness = self._worker.liveness
        late = liveness.late()
        stuck = None if late is None or late.is_in_database else late
        if stuck and not self._is_stuck:
            events.tell(events.WORKER_STUCK, seconds=stuck.seconds, where=stuck.where)
        elif self._is_stuck and not stuck:
            events.tell(events.WORKER_MOVED)
        self._is_stuck = stuck is not None
        if self._file and not stuck:
            self._touch(self._file)
        record = self._worker.record
        if record and record.is_late and not (stuck or self._worker.is_cut_off):
            self._ask(self._update, record)
        limit = liveness.stuck_seconds
        if late is None:
            self._has_given_up = self._is_given_back = False
        elif not self._has_given_up and (
            not stuck or late.seconds > limit + min(2 * limit, EXPLAINED_SECONDS)
        ):
            self._end(late)

    def _end(self, stuck: Stuck) -> None:
        """End the process, once its jobs are given back. The database may not answer.

        If the loop is in a project's code, the row whose code that is counts a crash, so that it is
        claimed alone next, and fails in the end.
        """
        call = self._worker.liveness.call or Call("", "")
        self._is_given_back = False
        if giving := self._ask(self._give_up, stuck, call):
            giving.join(GIVE_UP_SECONDS)
        if stuck.is_in_database and not self._is_given_back:
            return  # the database is away: a restart would not help
        if not self._is_given_back and self._worker.liveness.late() is None:
            return
        self._has_given_up = True
        events.tell(
            events.WORKER_GAVE_UP,
            seconds=stuck.seconds,
            where=stuck.where,
            spec=call.spec,
            source_pk=call.source_pk,
        )
        if self._ends_process:
            sys.stderr.flush()
            os._exit(STUCK)  # nothing else ends a thread

    def _give_up(self, stuck: Stuck, call: Call) -> None:
        """Give the jobs back, over a new connection."""
        using = self._worker.using
        error = (
            f"No end of its code within {self._worker.liveness.stuck_seconds:g} s: {stuck.where}"
        )
        try:
            with suppress(DatabaseError, InterfaceError):
                # Perhaps it is a standby that the loop waits for.
                database.execute(using, "SET synchronous_commit = 'local'")
                if self._worker.liveness.late() is None:
                    return  # the server was frozen: the loop goes on
                for work in self._worker.works:
                    work.held.give_up(call.spec, call.source_pk, error)
                self._is_given_back = True
        finally:
            connections[using].close()

    def _update(self, record: WorkerRecord) -> None:
        """Update the worker's row while the loop is too busy to do so."""
        try:
            with suppress(DatabaseError, InterfaceError):
                record.update(self._worker.works)
        finally:
            connections[self._worker.using].close()

    def _ask(self, question: Callable[..., None], *given: object) -> threading.Thread | None:
        """Ask in another thread, one at a time for each question: the database may hang as well."""
        asking = self._asking.get(question.__name__)
        if asking is None or not asking.is_alive():
            asking = OurThread(target=question, args=given, name="pgembed-asking")
            asking.daemon = True
            try:
                asking.start()
            except RuntimeError:  # no more threads: it asks again at the next look
                return None
            self._asking[question.__name__] = asking
        return asking

    def _touch(self, file: Path) -> None:
        try:
            file.touch()
        except OSError as error:
            # The probe may end this worker for that, but a full disk must not raise here.
            if not self._is_file_lost:
                events.tell(events.HEARTBEAT_FILE_LOST, path=str(file), error=str(error))
            self._is_file_lost = True
        else:
            self._is_file_lost = False

    def _run(self) -> None:
        stuck_seconds = self._worker.liveness.stuck_seconds
        seconds = min(LOOK_SECONDS, stuck_seconds / 4 or LOOK_SECONDS)
        while not self._ending.wait(seconds):
            self.look()


def _where(frames: list[FrameType]) -> str:
    """Return the innermost line that is not the standard library's."""
    own = (f for f in frames if _module(f).partition(".")[0] not in sys.stdlib_module_names)
    frame = next(own, frames[0])
    return f"{_module(frame)}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
