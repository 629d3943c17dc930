"""How the loop waits: it polls for a while, then goes on watch until a notification comes."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import suppress

from pgembed_django import conf
from pgembed_django.queue.listener import Listener

FIRST_LOOK_SECONDS = 0.001
LAST_LOOK_SECONDS = 0.008
"""The intervals at which an awake worker polls, ever more slowly, before it goes on watch."""

WAITING_LOOK_SECONDS = 0.004
"""The first interval while jobs are in flight: their results wake the loop anyway."""

BUSY_LOOK_SECONDS = 0.05
MAX_BUSY_LOOK_SECONDS = 0.8
"""The intervals while writers' transactions are open, or due jobs are locked."""

STANDBY_SECONDS = 0.5
"""How soon a standby checks whether the worker on watch still is."""


class Rest:
    """Waits for the listener, answers of providers, signals, and time-outs."""

    def __init__(self, settings: conf.Settings) -> None:
        self._settings = settings
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._is_woken = False
        self._look_seconds = FIRST_LOOK_SECONDS
        self._busy_seconds = BUSY_LOOK_SECONDS

    def wake(self) -> None:
        """End the wait. May be called from any thread, or from a signal handler."""
        if self._is_woken:
            return  # the loop has yet to look
        self._is_woken = True
        with suppress(BlockingIOError, OSError):
            self._sender.send(b"!")

    def moved(self, *, is_waiting: bool) -> None:
        """Poll at short intervals again, as there was something to do."""
        self._look_seconds = WAITING_LOOK_SECONDS if is_waiting else FIRST_LOOK_SECONDS
        self._busy_seconds = BUSY_LOOK_SECONDS

    def busy_look(self) -> float:
        """Return the seconds until the next look at what a writer has locked. Doubles each time."""
        seconds = self._busy_seconds
        self._busy_seconds = min(seconds * 2, MAX_BUSY_LOOK_SECONDS)
        return seconds

    def sleep(
        self,
        listener: Listener,
        *,
        step: Callable[[], bool],
        due_seconds: Callable[[], float | None],
        timeout: float,
    ) -> bool:
        """Wait for new jobs, or for anything else to do, up to ``timeout`` seconds.

        ``due_seconds`` tells in how many seconds the next job is due. Returns whether a ``step`` on
        watch already did something.
        """
        moved = False
        if self._look_seconds <= LAST_LOOK_SECONDS:
            self.wait(listener, min(timeout, self._look_seconds))
            self._look_seconds *= 2
        elif not listener.is_up:
            self.wait(listener, min(timeout, self._until_due(due_seconds)))
        elif not listener.watch():
            # A writer that saw us awake, and therefore did not notify, has yet to commit.
            self.wait(listener, min(timeout, self.busy_look()))
            listener.unwatch()
        else:
            # On watch now: commits from here on notify. Take one last step for earlier ones.
            moved = step()
            if not moved and not listener.hear():
                if listener.is_standby:
                    # Once the worker on watch wakes or is gone, nothing notifies this one.
                    timeout = min(timeout, STANDBY_SECONDS)
                self.wait(listener, min(timeout, self._until_due(due_seconds)))
                # Claim and send what the nudge was for before the watch ends.
                moved = step()
            listener.unwatch()
        return moved

    def wait(self, listener: Listener, seconds: float) -> None:
        """Wait until woken or nudged, for ``seconds`` at most."""
        sockets: list[socket.socket | Listener] = [self._receiver]
        if listener.is_up:
            sockets.append(listener)
        select.select(sockets, [], [], max(0.0, seconds))
        with suppress(BlockingIOError):
            while self._receiver.recv(4096):
                pass
        # Last: whoever finds it set is seen by the round that follows.
        self._is_woken = False
        if listener.hear():
            self._look_seconds = FIRST_LOOK_SECONDS

    def close(self) -> None:
        """Close the sockets."""
        self._receiver.close()
        self._sender.close()

    def _until_due(self, due_seconds: Callable[[], float | None]) -> float:
        due = due_seconds()
        if due is None:
            return self._settings.poll_seconds or float("inf")
        return due if due > 0 else self.busy_look()
