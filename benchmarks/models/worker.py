"""A real ``embed_worker`` with one provider, on a database of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg

from benchmarks import postgres
from benchmarks.models.texts import texts

START_SECONDS = 120.0
WARM = 8
WARM_OF_EACH = 1_024
"""How many rows are embedded before the time is taken, so that the model is loaded: by one process,
and for each of several."""

STORED = "SELECT count(embedding) FROM app_articleembedding"
ROW = "INSERT INTO app_article (title, contents, is_public, views) VALUES ('', %s, true, 0)"
COPY = "COPY app_article (title, contents, is_public, views) FROM STDIN"


def rows_per_second(config: Mapping[str, Any], *, rows: int) -> float:
    """Return how many rows a second are embedded, from their commit to the last vector."""
    processes = config.get("EXECUTOR", {}).get("PROCESSES", 1)
    warm = WARM if processes == 1 else WARM_OF_EACH * processes
    with postgres.fresh_database() as url, psycopg.connect(url, autocommit=True) as own:
        settings = {"PGEMBED_PROVIDERS": {"default": config}}
        environment = os.environ | {
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
            "BENCHMARK_SETTINGS": json.dumps(settings),
        }
        django = [sys.executable, "-m", "django"]
        subprocess.run([*django, "migrate", "--verbosity", "0"], env=environment, check=True)
        with _worker([*django, "embed_worker"], environment) as worker:
            with own.cursor() as cursor:
                cursor.executemany(ROW, [[f"warm {text}"] for text in texts(warm)])
            _wait(own, worker, warm, until=time.monotonic() + START_SECONDS)
            own.execute("CHECKPOINT")
            with own.transaction():
                with own.cursor() as cursor, cursor.copy(COPY) as copy:
                    for text in texts(rows):
                        copy.write_row(("", text, True, 0))
                own.execute("ANALYZE")
            began = time.monotonic()
            _wait(own, worker, warm + rows)
            return rows / (time.monotonic() - began)


@contextmanager
def _worker(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    worker = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield worker
    finally:
        worker.terminate()
        worker.wait()


def _wait(
    own: psycopg.Connection,
    worker: subprocess.Popen[bytes],
    count: int,
    *,
    until: float = float("inf"),
) -> None:
    """Wait until so many rows have their vectors."""
    began = time.monotonic()
    while True:
        [[done]] = own.execute(STORED).fetchall()
        if done >= count:
            return
        now = time.monotonic()
        if worker.poll() is not None or now > until:
            raise SystemExit(f"The worker embeds nothing: {worker.args!r}")
        # Counting loads the database too, and the end must not be seen late.
        time.sleep(max(0.01, (now - began) / 200))
