"""Detect that this process is stuck: its loop makes no rounds, and waits for nothing.

A loop that waits for the database is not stuck: a restart would not help. Other threads ask
the providers, so the loop goes on meanwhile.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from pgembed_django import events
from pgembed_django.queue.rest import Rest
from pgembed_django.queue.sessions import Sessions
from pgembed_django.user_code import Call, progress_of

DATABASE = ("psycopg", "psycopg_c", "psycopg_binary", "psycopg_pool")
LISTENER = "pgembed_django.queue.listener"  # its waits have a time-out
LOOK_SECONDS = 5.0
EXPLAINED_SECONDS = 10.0
"""How long at most a stuck worker still tells a probe why, before it gives up."""
WAITED_SECONDS = 1.0
"""How long an overdue worker's statement must have waited before it is canceled."""


class Stuck(NamedTuple):
    """How long the loop has been stuck, and at which line of code."""

    seconds: float
    where: str


class Liveness:
    """Knows when the loop began its last round. Other threads ask it."""

    def __init__(
        self, *, stuck_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stuck_seconds = stuck_seconds
        self._clock = clock
        self._ticked_at: float | None = None
        self._loop: int | None = None

    @property
    def call(self) -> Call | None:
        """The call of a project's code that the loop is in, if it is in one."""
        return None if self._loop is None else progress_of(self._loop).call

    @property
    def age_seconds(self) -> float:
        """The time since the loop's last round began. Zero before the first and after its end."""
        ticked_at = self._ticked_at
        return 0.0 if ticked_at is None else self._clock() - ticked_at

    def tick(self) -> None:
        """Note that a round begins. Called by the loop's own thread."""
        self._loop = threading.get_ident()
        self._ticked_at = self._clock()

    def end(self) -> None:
        """Note that the loop makes no more rounds."""
        self._ticked_at = None

    def stuck(self) -> Stuck | None:
        """Return where the loop is stuck, if it is."""
        frames = self._late_frames()
        return None if not frames or _waits(frames) else Stuck(self._late_by, _where(frames))

    def waiting_for_database(self) -> int | None:
        """Return the loop's thread id if it waits too long for the database."""
        frames = self._late_frames()
        is_waiting = _is_in_database(frames) and all(_module(one) != LISTENER for one in frames)
        return self._loop if is_waiting else None

    @property
    def _late_by(self) -> float:
        """The time since the loop last moved. Slow code for each of many rows moves on, too."""
        moved_at = self._clock() if self._loop is None else progress_of(self._loop).since
        return min(self.age_seconds, self._clock() - moved_at)

    def _late_frames(self) -> list[FrameType]:
        """Return the loop's stack, innermost first, if its round takes longer than it may."""
        if not self.stuck_seconds or self._late_by <= self.stuck_seconds or self._loop is None:
            return []
        return list(_frames(sys._current_frames().get(self._loop)))  # noqa: SLF001 - documented


class Watchdog:
    """Looks every few seconds. Logs when the loop is stuck; touches a file while it is not.

    If the loop waits long for the database, it checks whether the server still works on that. If
    the worker should have ended (``is_overdue``), it cancels waits for table locks and standbys.
    If the loop is only busy (``is_late``), it calls ``say_alive``. If it stays stuck, it calls
    ``give_up`` once, as a thread cannot be stopped.
    """

    def __init__(
        self,
        liveness: Liveness,
        *,
        sessions: Sessions | None = None,
        is_overdue: Callable[[], bool] = lambda: False,
        is_late: Callable[[], bool] = lambda: False,
        say_alive: Callable[[], None] = lambda: None,
        give_up: Callable[[Stuck], None] = lambda _: None,
        file: Path | None = None,
    ) -> None:
        self._liveness = liveness
        self._sessions = sessions
        self._is_overdue = is_overdue
        self._is_late = is_late
        self._say_alive = say_alive
        self._give_up = give_up
        self._has_given_up = False
        self._asking: dict[Callable[..., None], threading.Thread] = {}
        self._file = file
        self._is_stuck = False
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
        stuck = self._liveness.stuck()
        if stuck and not self._is_stuck:
            events.tell(events.WORKER_STUCK, seconds=stuck.seconds, where=stuck.where)
        elif self._is_stuck and not stuck:
            self._has_given_up = False
            events.tell(events.WORKER_MOVED)
        self._is_stuck = stuck is not None
        if self._file and not stuck:
            self._touch(self._file)
        if self._sessions and (
            self._is_overdue() or self._liveness.waiting_for_database() is not None
        ):
            self._ask(self._end_waits, self._sessions)
        if not stuck and self._is_late():
            self._ask(self._say_alive)
        limit = self._liveness.stuck_seconds
        explained = stuck and stuck.seconds > limit + min(2 * limit, EXPLAINED_SECONDS)
        if stuck and explained and not self._has_given_up:
            self._has_given_up = True
            self._give_up(stuck)

    def _ask(self, question: Callable[..., None], *given: object) -> None:
        """Ask the server in another thread for each question, as this may hang as well."""
        if question not in self._asking or not self._asking[question].is_alive():
            asking = threading.Thread(
                target=question, args=given, name="pgembed-asking", daemon=True
            )
            with suppress(RuntimeError):  # no more threads: it asks again at the next look
                asking.start()
                self._asking[question] = asking

    def _end_waits(self, sessions: Sessions) -> None:
        if self._is_overdue():
            sessions.cancel_waiting(seconds=WAITED_SECONDS)
        loop = self._liveness.waiting_for_database()
        if loop is not None:
            sessions.cut_silent(loop, seconds=self._liveness.stuck_seconds)

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
        seconds = min(LOOK_SECONDS, self._liveness.stuck_seconds / 4 or LOOK_SECONDS)
        while not self._ending.wait(seconds):
            self.look()


def _frames(innermost: FrameType | None) -> Iterator[FrameType]:
    while innermost is not None:
        yield innermost
        innermost = innermost.f_back


def _waits(frames: list[FrameType]) -> bool:
    """Return whether the loop waits for jobs, or for the database."""
    if not frames or frames[0].f_code is Rest.wait.__code__:
        return True
    return _is_in_database(frames)


def _is_in_database(frames: list[FrameType]) -> bool:
    return any(_module(frame).partition(".")[0] in DATABASE for frame in frames)


def _where(frames: list[FrameType]) -> str:
    """Return the innermost line that is not the standard library's."""
    own = (f for f in frames if _module(f).partition(".")[0] not in sys.stdlib_module_names)
    frame = next(own, frames[0])
    return f"{_module(frame)}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
