"""The processes that the demo starts: the worker and the web server."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from types import TracebackType

from demo import signals
from demo.exceptions import DemoFailed

MANAGE = Path(__file__).resolve().parent.parent / "manage.py"
LAST_LINES = 12
PATIENCE_SECONDS = 10


class Process:
    """A ``manage.py`` command that runs while the ``with`` block does.

    It has its own session, so that Ctrl-C only reaches the demo, which then stops everything in
    order.
    """

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self.arguments = arguments
        self.lines: deque[str] = deque(maxlen=LAST_LINES)

    def __enter__(self) -> Process:
        self.popen = subprocess.Popen(
            [sys.executable, str(MANAGE), *self.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signals.ignore()
        # At the first signal a worker finishes what is in flight. At the second it drops that.
        for stop in (self.popen.terminate, self.popen.terminate, self.popen.kill):
            stop()
            try:
                self.popen.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            break
        self.reader.join(PATIENCE_SECONDS)

    def require_alive(self) -> None:
        """Raise DemoFailed with the last lines of output, if the process has ended."""
        status = self.popen.poll()
        if status is not None:
            self.reader.join(1)
            raise DemoFailed(f"The {self.name} has ended with status {status}.{self.last_lines()}")

    def last_lines(self) -> str:
        """Return the last lines of the process's output, to append to a message."""
        if not self.lines:
            return f" The {self.name} has said nothing."
        return "\n".join([f" The {self.name} said last:", *(f"    {line}" for line in self.lines)])

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.lines.append(line.rstrip())
