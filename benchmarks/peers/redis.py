"""A Redis for Celery, for as long as a benchmark runs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running() -> Iterator[bool]:
    """Run a Redis (append-only, fsync every second). Yield False if none is installed."""
    binary = shutil.which("redis-server")
    if binary is None:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="pgembed-redis-") as folder:
        path = Path(folder) / "redis"
        server = subprocess.Popen(
            [binary, "--unixsocket", path, "--port", "0", "--dir", folder, "--appendonly", "yes"],
            stdout=subprocess.DEVNULL,
        )
        os.environ["BENCHMARK_REDIS"] = f"redis+socket://{path}"
        try:
            while not _answers(path):
                time.sleep(0.01)
            yield True
        finally:
            server.terminate()
            server.wait()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0
