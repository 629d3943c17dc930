"""Where runs happen: in threads, each with a process of its own if asked for, or on an event loop.

The worker's loop hands runs in, and gets those back that have ended, or were never begun.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from django.db import connections

from pgembed_django.tasks.errors import described
from pgembed_django.tasks.processes import Child
from pgembed_django.tasks.running import End, Outcome, Run, leave_sessions

IDLE_SECONDS = 10.0
"""After so long without a run, a thread closes its connections to databases."""


class Places:
    """Runs a number of tasks at once. ``done`` is called in other threads, with each that ended."""

    def __init__(self, count: int, *, done: Callable[[Run], None], in_processes: bool) -> None:
        self._count = count
        self._done = done
        self._in_processes = in_processes
        self._todo: SimpleQueue[Run | None] = SimpleQueue()
        self._threads: set[_Place] = set()
        self._begun = 0
        """How many runs were handed in and have not ended or been given up, of functions that are
        no coroutines. The loop counts them."""
        self._coroutines: _Coroutines | None = None

    def put(self, run: Run) -> None:
        """Let a run begin as soon as there is a place."""
        if run.is_async and not self._in_processes:
            if self._coroutines is None:
                self._coroutines = _Coroutines(self._count, done=self._done)
            self._coroutines.put(run)
            return
        self._begun += 1
        if len(self._threads) < min(self._begun, self._count):
            place = _Place(self._todo, done=self._done, in_process=self._in_processes)
            place.start()
            self._threads.add(place)
        self._todo.put(run)

    def ended(self, run: Run) -> None:
        """Note that a run has ended."""
        if not run.is_async or self._in_processes:
            self._begun -= 1

    def take_back(self) -> list[Run]:
        """Return the runs that have not begun. They will not."""
        back = [*self._coroutines.take_back()] if self._coroutines else []
        with suppress(Empty):
            while True:
                run = self._todo.get_nowait()
                if run is not None:
                    back.append(run)
        return back

    def abandon(self, run: Run) -> None:
        """Give the place of a run that does not end to others. Its thread ends with it."""
        if run.is_async and self._coroutines is not None:
            self._coroutines.abandon(run)
        for place in [*self._threads]:
            if place.run_now is run and not self._in_processes:
                place.is_surplus = True
                self._threads.discard(place)

    def close(self) -> None:
        """Let idle threads end, and busy ones after their run. Kills processes."""
        for place in self._threads:
            self._todo.put(None)
            place.close()
        self._threads = set()
        if self._coroutines is not None:
            self._coroutines.close()
            self._coroutines = None


def _nothing() -> None:
    """Stop what has ended."""


class _Place(threading.Thread):
    """A thread that takes the next run itself."""

    def __init__(
        self, todo: SimpleQueue[Run | None], *, done: Callable[[Run], None], in_process: bool
    ) -> None:
        super().__init__(name="pgembed-task", daemon=True)
        self._todo = todo
        self._done = done
        self._child = Child() if in_process else None
        self.run_now: Run | None = None
        self.is_surplus = False

    def run(self) -> None:
        """Run tasks until told to end."""
        while (run := self._next()) is not None:
            self.run_now = run
            # One that was given back while it waited is another worker's now.
            if not run.is_given_up:
                self._run(run)
            self.run_now = None
            self._done(run)
            if self.is_surplus:
                break
        connections.close_all()

    def _run(self, run: Run) -> None:
        try:
            if self._child is not None:
                self._child.run(run)
            else:
                run.run()
                leave_sessions()
        except BaseException as error:  # noqa: BLE001 - else nobody would tell how it has ended
            if self._child is not None:
                self._child.give_up()
            if run.outcome is None:
                run.outcome = Outcome(End.RETRY, described(error))

    def close(self) -> None:
        """Kill the process, if there is one."""
        if self._child is not None:
            self._child.close()

    def _next(self) -> Run | None:
        try:
            return self._todo.get(timeout=IDLE_SECONDS)
        except Empty:
            connections.close_all()
            return self._todo.get()


class _Coroutines:
    """An event loop in a thread, on which a number of coroutines run at once."""

    def __init__(self, count: int, *, done: Callable[[Run], None]) -> None:
        self._free = count
        self._done = done
        self._todo: deque[Run] = deque()
        self._tasks: dict[Run, asyncio.Task[None]] = {}
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._serve, name="pgembed-async", daemon=True).start()

    def put(self, run: Run) -> None:
        self._todo.append(run)
        self._loop.call_soon_threadsafe(self._fill)

    def take_back(self) -> list[Run]:
        back = []
        with suppress(IndexError):
            while True:
                back.append(self._todo.popleft())
        return back

    def abandon(self, run: Run) -> None:
        self._loop.call_soon_threadsafe(self._abandon, run)

    def close(self) -> None:
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    # On the event loop

    def _serve(self) -> None:
        # A function may stop the loop, or exit in a task that it has created. Others run on it.
        while not self._is_closed:
            with suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            # Nobody waits for this thread, however long they take over their end.
            self._loop.run_until_complete(asyncio.wait(left))
        self._loop.close()

    def _fill(self) -> None:
        with suppress(IndexError):
            while self._free > 0:
                run = self._todo.popleft()
                if run.is_given_up:
                    self._done(run)
                    continue
                self._free -= 1
                task = self._loop.create_task(run.arun())
                # The loop keeps only weak references to tasks.
                self._tasks[run] = task
                run.stop = partial(self._cancel, task)
                task.add_done_callback(partial(self._end, run))

    def _end(self, run: Run, task: asyncio.Task[None]) -> None:
        run.stop = _nothing
        if not task.cancelled() and (error := task.exception()) and run.outcome is None:
            run.outcome = Outcome(End.RETRY, described(error))  # it failed before its function
        if self._tasks.pop(run, None):
            self._free += 1
        self._done(run)
        self._fill()

    def _abandon(self, run: Run) -> None:
        if self._tasks.pop(run, None):
            self._free += 1
            self._fill()

    def _cancel(self, task: asyncio.Future[None]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(task.cancel)
