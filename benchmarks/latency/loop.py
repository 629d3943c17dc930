"""Written by hand: a trigger that adds a job and notifies, and a loop that claims, embeds, stores.

It does nothing else: no leases, retries, reuse, full text, or sharing with a second worker.
"""

from __future__ import annotations

import numpy as np
import psycopg
import requests
from pgvector.psycopg import register_vector

TABLES = """
    CREATE EXTENSION vector;
    CREATE TABLE article (
        id bigserial PRIMARY KEY, title text, contents text, is_public bool, views int
    );
    CREATE TABLE vectors (source bigint PRIMARY KEY, embedding vector);
    CREATE VIEW embedded AS SELECT source FROM vectors;
    CREATE TABLE job (
        id bigserial PRIMARY KEY, source bigint NOT NULL, status text NOT NULL DEFAULT 'pending'
    );
    CREATE INDEX ON job (id) WHERE status = 'pending';
    CREATE FUNCTION enqueue() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO job (source) VALUES (NEW.id);
        NOTIFY job;
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER enqueue AFTER INSERT ON article FOR EACH ROW EXECUTE FUNCTION enqueue();
"""
CLAIM = """
    UPDATE job
    SET status = 'running'
    WHERE id = ANY(ARRAY(
        SELECT id FROM job WHERE status = 'pending' ORDER BY id LIMIT 32 FOR UPDATE SKIP LOCKED
    ))
    RETURNING id, source
"""


def fill(database: str, url: str, width: int, rows: int) -> None:
    """Create the tables."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)


def embed(database: str, url: str, width: int, rows: int) -> None:
    """Embed rows as they come."""
    session = requests.Session()
    with (
        psycopg.connect(database, autocommit=True) as listening,
        psycopg.connect(database, autocommit=True) as working,
    ):
        register_vector(working)
        listening.execute("LISTEN job")
        while True:
            claimed = working.execute(CLAIM).fetchall()
            if not claimed:
                list(listening.notifies(timeout=1, stop_after=1))
                continue
            ids, sources = zip(*claimed, strict=True)
            texts = working.execute(
                "SELECT id, contents FROM article WHERE id = ANY(%s)", [list(sources)]
            ).fetchall()
            payload = {"model": "served", "input": [text for _, text in texts]}
            answer = session.post(f"{url}/api/embed", json=payload).json()
            vectors = np.asarray(answer["embeddings"], dtype=np.float32)
            rows_made = [(key, vector) for (key, _), vector in zip(texts, vectors, strict=True)]
            with working.transaction(), working.cursor() as cursor:
                cursor.executemany("INSERT INTO vectors VALUES (%s, %s)", rows_made)
                cursor.execute("DELETE FROM job WHERE id = ANY(%s)", [list(ids)])
