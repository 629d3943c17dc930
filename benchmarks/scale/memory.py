"""Measure the peak memory of a real worker's process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psycopg

from benchmarks import usage
from benchmarks.compare import Figures

FIGURE = "MB"
STORED = "SELECT count(*) FROM app_articleembedding WHERE text_digest <> ''"
STALL_SECONDS = 120


def of(url: str, settings: dict[str, Any], rows: int) -> Callable[[], Figures]:
    """Return a function that measures a worker until it has stored ``rows`` rows."""

    def measure() -> Figures:
        told = {**os.environ, "DATABASE_URL": url, "BENCHMARK_SETTINGS": json.dumps(settings)}
        command = [sys.executable, "-m", "django", "embed_worker"]
        with (
            subprocess.Popen(
                command, env=told, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as worker,
            psycopg.connect(url, autocommit=True) as connection,
        ):
            deadline = time.monotonic() + STALL_SECONDS
            stored = 0
            while stored < rows:
                assert time.monotonic() < deadline, f"only {stored} rows are stored"
                assert worker.poll() is None, "the worker has ended"
                time.sleep(0.2)
                [stored] = connection.execute(STORED).fetchone() or (0,)
            peak = usage.peak_bytes(worker.pid)
            worker.terminate()
        return {FIGURE: peak / 2**20, "rows stored": float(stored)}

    return measure
