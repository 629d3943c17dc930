"""A table of texts, a table of vectors with the same keys, and a hand-written handler."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from benchmarks.served import MODEL
from benchmarks.soak.server import WIDTH, vector_of

LEASE_SECONDS = 4
"""How long a worker may be silent before its jobs are taken over, if a queue lets one set that."""

AT_ONCE = 16
"""How many texts a worker sends at once: the same for all, so that they drain equally fast."""

TABLES = f"""
    CREATE EXTENSION IF NOT EXISTS vector;
    CREATE TABLE source (id bigint PRIMARY KEY, body text NOT NULL);
    CREATE TABLE stored (
        id bigint PRIMARY KEY REFERENCES source ON DELETE CASCADE,
        embedding vector({WIDTH}) NOT NULL
    );
"""
STORE = """
    INSERT INTO stored (id, embedding)
    VALUES (%s, %s::vector)
    ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
"""


class Contender:
    """What all contenders have in common. ``write`` and ``delete`` change rows."""

    SOURCE = "SELECT id, body FROM source"
    STORED = "SELECT id, embedding::text FROM stored"
    WRITE = """
        INSERT INTO source (id, body) VALUES (%s, %s)
        ON CONFLICT (id) DO UPDATE SET body = excluded.body
    """
    DELETE = "DELETE FROM source WHERE id = %s"
    OPEN: str
    """The query for how many jobs have not ended."""
    GIVEN_UP: str

    def __init__(self) -> None:
        self.url = os.environ["DATABASE_URL"]
        self.name = ""
        self.connection = psycopg.connect(self.url, autocommit=True)

    def prepare(self) -> None:
        """Create all tables, including those of the queue."""
        self.connection.execute(TABLES)

    def work(self) -> None:
        """Work until killed."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Return the command of a worker process."""
        return [sys.executable, "-m", "benchmarks.chaos", self.name]

    def environment(self) -> dict[str, str]:
        """Return the environment of a worker process."""
        return {}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a transaction that commits the rows and jobs written in it."""
        with self.connection.transaction():
            yield

    def enqueue(self, key: int) -> None:
        """Add a job, in the writer's transaction."""

    def write(self, key: int, text: str) -> None:
        """Insert or update a row."""
        with self.transaction():
            self.execute(self.WRITE, key, text)
            self.enqueue(key)

    def delete(self, key: int) -> None:
        """Delete a row."""
        with self.transaction():
            self.execute(self.DELETE, key)

    def execute(self, statement: str, *parameters: object) -> None:
        """Run a statement on the writer's connection."""
        self.connection.execute(statement, parameters)

    def number(self, statement: str) -> int:
        """Return the number that a statement selects."""
        [number] = self.connection.execute(statement).fetchone() or (0,)
        return int(number)

    def text_of(self, body: str) -> str:
        """Return the text that is embedded for a row with this body."""
        return body


def handle(url: str, key: int) -> None:
    """Embed one row, as a user's handler would."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT body FROM source WHERE id = %s", [key]).fetchone()
        if row is None:
            return  # deleted since
        connection.execute(STORE, [key, str(embed(row[0]))])


def embed(text: str) -> list[float]:
    """Ask the server for the vector of a text."""
    request = urllib.request.Request(
        f"{os.environ['CHAOS_SERVER']}/api/embed",
        json.dumps({"model": MODEL, "input": [text]}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        [vector] = json.load(answer)["embeddings"]
    return list(vector)


def is_of(vector: Sequence[float], text: str) -> bool:
    """Return whether a vector is that of the text. Its length does not matter."""
    expected = vector_of(text)
    scale = sum(x * x for x in expected) ** 0.5
    length = sum(x * x for x in vector) ** 0.5
    return all(
        abs(found / length - wanted / scale) < 1e-4
        for found, wanted in zip(vector, expected, strict=True)
    )
