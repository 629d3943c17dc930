"""Locks that are acquired before a fork, so that no other thread holds them in the child.

A child process has a copy of its parent's memory, but only the thread that forked. Whatever
another thread was doing is never finished there: its lock stays locked, its module half imported.
"""

from __future__ import annotations

import os
import threading

_locks: list[threading.RLock] = []
_held: list[threading.RLock] = []


def lock() -> threading.RLock:
    """Return a lock that lives as long as the process.

    It is reentrant, because a library may fork while it is being loaded under the lock.
    """
    made = threading.RLock()
    _locks.append(made)
    return made


def _hold() -> None:
    for known in tuple(_locks):
        known.acquire()
        _held.append(known)


def _let_go() -> None:
    # Only those that _hold() acquired: other locks may have been made since.
    while _held:
        _held.pop().release()


os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_let_go)
