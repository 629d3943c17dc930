"""The application's writer: it writes one row in ten again and again, at a steady pace."""

from __future__ import annotations

import os
import random
import time
from multiprocessing.connection import Connection
from typing import Any

import psycopg

from benchmarks.soak.processes import SPAWN

ONE_IN = 10
"""Rows whose key is a multiple of this are written. The texts of all others stay."""

WRITE = """
    UPDATE app_article
    SET contents = regexp_replace(contents, ' Written .*$', '') || %(mark)s
    WHERE id = %(id)s
"""


class Writer:
    """The writer's process. It needs DATABASE_URL."""

    def __init__(self, *, rows: int, per_second: float, seed: int) -> None:
        self._pipe, far_end = SPAWN.Pipe()
        arguments = (far_end, rows, per_second, seed)
        SPAWN.Process(target=_write, args=arguments, daemon=True).start()
        far_end.close()

    def stop(self) -> int:
        """End the process. Return how many writes it has committed.

        Raises:
            EOFError: it has died.
        """
        self._pipe.send("stop")
        return int(self._pipe.recv())


def _write(pipe: Connection, rows: int, per_second: float, seed: int) -> None:
    draw = random.Random(seed)
    written = 0
    began = time.monotonic()
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        while not pipe.poll(max(began + written / per_second - time.monotonic(), 0.0)):
            parameters: dict[str, Any] = {
                "id": draw.randrange(1, rows // ONE_IN + 1) * ONE_IN,
                "mark": f" Written {written}, {draw.random()}.",
            }
            connection.execute(WRITE, parameters)
            written += 1
    pipe.send(written)
