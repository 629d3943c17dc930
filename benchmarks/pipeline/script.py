"""Written by hand: read in key order, send four batches of 32 at once, COPY what comes back.

It has no jobs, leases, digests or full text, and cannot resume after a crash.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import numpy as np
import psycopg
import requests
from pgvector.psycopg import register_vector

from benchmarks.pipeline import BATCH, texts

AT_ONCE = 4
TOGETHER = 8
"""How many batches are written with one COPY."""


def fill(database: str, url: str, width: int, rows: int) -> None:
    """Create the tables and the rows."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
        connection.execute("CREATE TABLE article (id bigserial PRIMARY KEY, contents text)")
        connection.execute("CREATE TABLE vectors (id bigint PRIMARY KEY, embedding vector)")
        connection.execute("CREATE VIEW embedded AS SELECT id AS source FROM vectors")
        with (
            connection.cursor() as cursor,
            cursor.copy("COPY article (contents) FROM STDIN") as copy,
        ):
            for text in texts.texts(rows):
                copy.write_row((text,))
        connection.execute("VACUUM ANALYZE")


def embed(database: str, url: str, width: int, count: int) -> None:
    """Embed all rows."""
    session = requests.Session()

    def ask(batch: tuple[tuple[int, str], ...]) -> list[tuple[int, np.ndarray]]:
        answer = session.post(
            f"{url}/api/embed", json={"model": "served", "input": [text for _, text in batch]}
        ).json()
        vectors = np.asarray(answer["embeddings"], dtype=np.float32)
        return [(key, vector) for (key, _), vector in zip(batch, vectors, strict=True)]

    with (
        psycopg.connect(database) as reading,
        psycopg.connect(database, autocommit=True) as writing,
        ThreadPoolExecutor(AT_ONCE) as threads,
        reading.cursor("rows") as cursor,
    ):
        register_vector(writing)
        cursor.itersize = 2000
        cursor.execute("SELECT id, contents FROM article ORDER BY id")
        asked: deque[Future[list[tuple[int, np.ndarray]]]] = deque()
        back: list[tuple[int, np.ndarray]] = []
        rows = iter(cursor)
        while batch := tuple(islice(rows, BATCH)):
            asked.append(threads.submit(ask, batch))
            while len(asked) > 2 * AT_ONCE:
                back += asked.popleft().result()
                if len(back) >= TOGETHER * BATCH:
                    _store(writing, back)
        for future in asked:
            back += future.result()
        _store(writing, back)


def _store(connection: psycopg.Connection, back: list[tuple[int, np.ndarray]]) -> None:
    with (
        connection.cursor() as cursor,
        cursor.copy("COPY vectors (id, embedding) FROM STDIN (FORMAT binary)") as copy,
    ):
        copy.set_types(["int8", "vector"])
        for row in back:
            copy.write_row(row)
    back.clear()
