"""Run tasks in a process of their own, for what holds Python's lock or may crash.

The worker's thread sends a call and waits for its outcome. The child completes over its own
connection, and proves the lease itself. It ends when its end of the pipe is closed, which the
system does however the worker ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from pgembed_django import events

if TYPE_CHECKING:
    from pgembed_django.tasks.running import Run

MAIN = "import sys; from pgembed_django.tasks.processes import main; main(int(sys.argv[1]))"

STOPPED = "The worker ends."


class Child:
    """A child process, which is started for the first run, and again after it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._lock = threading.Lock()
        self._now: Run | None = None
        """What it runs. Another run's time must not end it."""
        self._is_closed = False

    def run(self, run: Run) -> None:
        """Run a task in the child. If that dies, so is the run's outcome."""
        from pgembed_django.tasks.running import End, Outcome

        run.stop = lambda: self._stop(run)
        try:
            pipe = self._started()
            with self._lock:
                self._now = run
            pipe.send(("run", _sent(run)))
            while run.outcome is None:
                match pipe.recv():
                    case ("began", at):
                        run.began_at = at
                    case ("completing", is_completing):
                        run.is_completing = is_completing
                    case ("outcome", outcome):
                        with self._lock:
                            self._now = None
                        run.outcome = outcome
        except (EOFError, OSError):
            said = self._died()
            run.outcome = Outcome(End.CRASHED, said)

    def give_up(self) -> None:
        """End the child: what it was told, or has answered, cannot be understood."""
        self._kill()
        self._died()

    def close(self) -> None:
        """End the child. Any thread may call it."""
        self._is_closed = True
        self._kill()

    def _started(self) -> Connection:
        with self._lock:
            if self._is_closed:
                raise EOFError
            if self._pipe is not None:
                return self._pipe
            module = os.environ.get("DJANGO_SETTINGS_MODULE")
            if not module:
                raise ImproperlyConfigured("--processes needs DJANGO_SETTINGS_MODULE.")
            ours, theirs = Pipe()
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            number = theirs.fileno()
            # S603: this very interpreter, and our own code.
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", MAIN, str(number)], env=environment, pass_fds=[number]
            )
            theirs.close()
            self._pipe = ours
            return ours

    def _stop(self, run: Run) -> None:
        """Tell the function, which may look. If its time is up, kill it."""
        with self._lock, suppress(OSError):
            if self._now is not run or self._process is None or self._pipe is None:
                return
            if run.is_given_up:
                self._process.kill()
            else:
                self._pipe.send(("cancel", run.canceled_for))

    def _kill(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def _died(self) -> str:
        """Return how the child has ended, and forget it."""
        with self._lock:
            process, self._process = self._process, None
            pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()
        if process is None:
            return STOPPED
        process.kill()
        status = process.wait()
        said = f"its process ended with status {status}"
        if not self._is_closed:
            events.tell(events.CHILD_DIED, pid=process.pid, error=said)
        return said


def _sent(run: Run) -> dict[str, Any]:
    return {
        "call": run.call,
        "using": run.using,
        "max_attempts": run.max_attempts,
        "is_async": run.is_async,
        "worker": run.worker,
        "search_path": run.search_path,
    }


def main(number: int) -> None:
    """Run tasks in this process, as the worker sends them."""
    import django

    # The worker decides when it ends. A terminal or a supervisor may signal all processes.
    # By handlers: programs that a function starts would inherit that they are ignored.
    ended_by = (signal.SIGINT, signal.SIGTERM)
    before = {one: signal.signal(one, lambda *_: None) for one in ended_by}
    django.setup()

    from queue import SimpleQueue

    from pgembed_django.tasks import results, tenants
    from pgembed_django.tasks.running import End, Outcome, Run, leave_sessions

    pipe = Connection(number)
    os.set_inheritable(number, False)

    def leave() -> None:
        pipe.close()
        for one, handler in before.items():
            signal.signal(one, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ended_by)

    # What a function forks may outlive this process. The worker must see its end all the same.
    # A signal that comes before it has left this one waits.
    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ended_by),
        after_in_child=leave,
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, ended_by),
    )
    todo: SimpleQueue[dict[str, Any]] = SimpleQueue()
    now: list[Run] = []

    def listen() -> None:
        try:
            while True:
                match pipe.recv():
                    case ("run", sent):
                        todo.put(sent)
                    case ("cancel", reason):
                        for run in [*now]:
                            run.cancel(reason)
        except (EOFError, OSError):
            os._exit(0)  # whatever the function is at

    threading.Thread(target=listen, name="pgembed-worker", daemon=True).start()
    while True:
        sent = todo.get()
        pipe.send(("began", time.monotonic()))
        try:
            task = results.declared(sent["call"].claim.kind)
            enter_tenant = tenants.context_of(task)
        except Exception as error:  # noqa: BLE001 - importing runs a project's code
            pipe.send(("outcome", Outcome(End.RETRY, f"{error}")))
            continue
        run = Run(
            task=task,
            enter_tenant=enter_tenant,
            tell=lambda is_completing: pipe.send(("completing", is_completing)),
            **sent,
        )
        now[:] = [run]
        run.run()
        now.clear()
        leave_sessions()
        outcome = run.outcome
        try:
            # An exception may be pickled, and then not be made again of its arguments.
            pickle.loads(pickle.dumps(outcome))  # noqa: S301 - our own
        except Exception:  # noqa: BLE001 - the exception is a project's own
            outcome = outcome and outcome._replace(error=None)
        pipe.send(("outcome", outcome))
