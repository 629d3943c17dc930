"""Start a worker anew when code changes. For development.

The parent process starts the worker as a child and passes on what it is told. The worker keeps its
main thread, so that signals and failures end it as they do without a reloader.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.utils import autoreload

START_AGAIN = 3
"""The exit status of a child that is to be started again. Django's reloaders use the same."""


def is_child() -> bool:
    """Return whether this process is the child, which works."""
    return os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true"


def supervise() -> int:
    """Run this command line in a child, as often as it asks for. Return its last exit status."""
    environment = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
    child: subprocess.Popen[bytes] | None = None
    asked = False

    def stop(*_: object) -> None:
        nonlocal asked
        asked = True
        if child is not None:
            child.terminate()

    # A terminal sends Ctrl-C to the child as well, which then stops at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while True:
        # S603: these are the arguments of this very process.
        child = subprocess.Popen(autoreload.get_child_arguments(), env=environment)  # noqa: S603
        if asked:
            child.terminate()
        status = child.wait()
        if status != START_AGAIN or asked:
            return status


@contextmanager
def ended_by_a_change(stop: Callable[[], None]) -> Iterator[None]:
    """Stop the worker at once when code changes, and then exit with ``START_AGAIN``."""
    changed = threading.Event()

    def watch() -> None:
        try:
            autoreload.get_reloader().run(threading.main_thread())
        except SystemExit:  # what Django's reloaders raise at a change
            changed.set()
            stop()
            stop()  # at once

    threading.Thread(target=watch, name="pgembed-reloader", daemon=True).start()
    yield
    if changed.is_set():
        sys.exit(START_AGAIN)
