"""Locks that a fork waits for.

A child has its parent's memory and none of its other threads. What such a thread has begun is
never finished there: a lock stays locked, and a module half imported.
"""

from __future__ import annotations

import os
import threading

_locks: list[threading.RLock] = []
_held: list[threading.RLock] = []


def lock() -> threading.RLock:
    """Return a lock for the life of the process.

    The thread that forks may hold it: libraries fork while they are loaded.
    """
    made = threading.RLock()
    _locks.append(made)
    return made


def _hold() -> None:
    for known in tuple(_locks):
        known.acquire()
        _held.append(known)


def _let_go() -> None:
    # Others may have been made since they were held.
    while _held:
        _held.pop().release()


os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_let_go)
