"""Captures of the articles' changes, other than by triggers that enqueue.

A process declares its capture by the setting CAPTURE. The migrations of the benchmarks have
triggers that enqueue, so what those of another capture would do is done here.
"""

from __future__ import annotations

import time

import psycopg

READ = ("wal", "message")
"""The captures that are read from the write-ahead log."""

NAME = "SELECT 'pgembed_' || oid FROM pg_database WHERE datname = current_database()"
END = f"""
    DROP PUBLICATION IF EXISTS pgembed;
    DELETE FROM pgembed_replicationslot;
    SELECT pg_drop_replication_slot(slot_name)
    FROM pg_replication_slots
    WHERE slot_name = ({NAME});
"""
BEGIN = f"SELECT pg_create_logical_replication_slot(({NAME}), 'pgoutput')"
IS_READ = f"""
    SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = ({NAME}) AND active)
"""
# All that was committed before this position is enqueued.
LAG = """
    SELECT
        (pg_current_wal_lsn() - '0/0') - position,
        EXTRACT(epoch FROM clock_timestamp() - read_at)
    FROM pgembed_replicationslot
"""


def publish(connection: psycopg.Connection, capture: str) -> None:
    """Begin anew with the publication and the slot of a capture, and nobody who reads.

    The triggers are left as they are.
    """
    from benchmarks.app.models import Article
    from pgembed_django.models import publication

    connection.execute(END)
    if capture in READ:
        models = [Article] if capture == "wal" else []
        for statement in publication.statements(models):
            connection.execute(statement)
        connection.execute(BEGIN)


def install(connection: psycopg.Connection, capture: str) -> None:
    """Install the triggers of this process's capture, and its publication and slot."""
    import pgtrigger

    pgtrigger.install()
    pgtrigger.prune()
    publish(connection, capture)


def install_all(connection: psycopg.Connection) -> None:
    """Install what the captures of all specs of this process need. Workers make the slot."""
    import pgtrigger

    from pgembed_django.declaration import specs
    from pgembed_django.models import publication

    pgtrigger.install()
    pgtrigger.prune()
    read = [spec for spec in specs.all() if spec.is_read_from_log]
    if read:
        published = [spec.model for spec in read if spec.capture == "wal"]
        for statement in publication.statements(published):
            connection.execute(statement)


def end() -> int:
    """Return the end of the log."""
    from pgembed_django.capture import slots

    return slots.look(using="default").end


def await_reader(url: str) -> None:
    """Wait until a worker reads from the slot of a database."""
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(IS_READ).fetchone() != (True,):
            time.sleep(0.02)
