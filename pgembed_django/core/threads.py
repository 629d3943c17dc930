"""Daemon threads of ours, executors that run in them or in the caller's, and locks for forks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any

from pgembed_django.exceptions import ProviderError, ProviderUnavailable


class OurThread(threading.Thread):
    """A thread that nobody but us knows: what a provider raises there interrupts nobody."""


class Inline(Executor):
    """Runs each request in the caller's thread, for tests."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except ProviderError as error:
            future.set_exception(error)
        return future


class Threads(Executor):
    """Runs requests in daemon threads, so that a hanging one does not keep the process alive.

    At exit, the interpreter would wait for the threads of a ThreadPoolExecutor.
    """

    def __init__(self, count: int, *, name: str) -> None:
        self._name = name
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._count = self._left = count

    def grow(self, count: int) -> None:
        """Run up to as many requests at once from now on. The thread that submits them calls it."""
        if count > self._count:
            self._left += count - self._count
            self._count = count

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised again by future.result()
                future.set_exception(error)
            else:
                future.set_result(result)

        if self._left:
            try:
                OurThread(target=self._run, name=self._name, daemon=True).start()
                self._left -= 1
            except RuntimeError:
                if self._left == self._count:  # nobody would ever run it
                    message = "This process can start no thread: is it at the limit of its system?"
                    future.set_exception(ProviderUnavailable(message))
                    return future
        self._todo.put(run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End idle threads. Does not wait for busy ones. The executor may be used again."""
        for _ in range(self._count - self._left):
            self._todo.put(None)
        self._left = self._count

    def _run(self) -> None:
        while run := self._todo.get():
            run()


_locks: list[threading.RLock] = []
_held: list[threading.RLock] = []


def fork_safe_lock() -> threading.RLock:
    """Return a lock that is acquired before each fork, so that no other thread has it in the child.

    A child has a copy of its parent's memory, but only the thread that forked. What another thread
    was doing is never finished there: its lock stays locked, its module half imported. The lock is
    reentrant, because a library may fork while it is being loaded under it.
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
