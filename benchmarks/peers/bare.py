"""A minimal loop: claim 50 jobs with one statement, delete them with the next. No leases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg

from benchmarks.queue.handler import AT_ONCE, BATCH, Handler

TABLE = """
    CREATE TABLE bare (
        id bigserial PRIMARY KEY,
        status text NOT NULL DEFAULT 'pending',
        run_at timestamptz NOT NULL DEFAULT now()
    );
    CREATE INDEX ON bare (run_at, id) WHERE status = 'pending';
"""
CLAIM = """
    UPDATE bare
    SET status = 'running'
    WHERE id = ANY(ARRAY(
        SELECT id
        FROM bare
        WHERE status = 'pending'
          AND run_at <= now()
        ORDER BY run_at, id
        LIMIT 50
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING id
"""


def fill(url: str, count: int) -> None:
    """Add jobs."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute("INSERT INTO bare SELECT FROM generate_series(1, %s)", [count])
        connection.execute("VACUUM ANALYZE bare")


def drain(url: str, handler: Handler) -> None:
    """Handle one batch at a time, so the handlers rest while the database works."""
    assert BATCH == 50
    with (
        psycopg.connect(url, autocommit=True) as connection,
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):
        while True:
            ids = [row[0] for row in connection.execute(CLAIM)]
            if handler.sleeps:
                list(threads.map(handler, ids))
            else:
                for one in ids:
                    handler(one)
            connection.execute("DELETE FROM bare WHERE id = ANY(%s)", [ids])
