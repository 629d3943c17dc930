"""Write what the write-ahead log has other records of: large and prepared transactions."""

from __future__ import annotations

import random
import uuid
from contextlib import suppress

import psycopg
from django.db import Error, connection, transaction

from benchmarks.app.models import Article
from benchmarks.soak.actions import Texts

MANY = 100_000
FIRST = 10**9
"""The first key of the many rows, which do not match the condition: nothing of them is embedded."""

INSERT = """
    INSERT INTO app_article (id, title, contents, is_public, views)
    SELECT n, 'one of many', '', false, 0
    FROM generate_series(%s, %s) AS n
"""
MAY_PREPARE = "SELECT current_setting('max_prepared_transactions')::int > 0"
LEFT = """
    SELECT gid
    FROM pg_prepared_xacts
    WHERE database = current_database()
      AND prepared <= now() - make_interval(secs => %s)
"""
LATE_SECONDS = 5
"""Nobody takes so long to end a prepared transaction, except after a fault."""


def write_many() -> int:
    """Insert many rows in one transaction, a part of them in a subtransaction."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(INSERT, [FIRST, FIRST + MANY // 2 - 1])
        with transaction.atomic():
            cursor.execute(INSERT, [FIRST + MANY // 2, FIRST + MANY - 1])
    return MANY


def delete_many() -> int:
    """Delete them."""
    rows = Article._base_manager.filter(pk__gte=FIRST)
    return int(rows._raw_delete(rows.db))  # noqa: SLF001


def may_prepare() -> bool:
    """Return whether the server has room for prepared transactions."""
    with connection.cursor() as cursor:
        cursor.execute(MAY_PREPARE)
        return bool(cursor.fetchone()[0])


def prepare(texts: Texts, draw: random.Random) -> int:
    """Write a few rows, prepare the transaction, and end it over another connection."""
    name = uuid.uuid4().hex
    parameters = connection.get_connection_params()
    parameters.pop("cursor_factory", None)
    with connection.wrap_database_errors:
        with psycopg.connect(**parameters) as first:
            keys = [
                key
                for [key] in first.execute(
                    "SELECT id FROM app_note ORDER BY id LIMIT 3 FOR UPDATE SKIP LOCKED"
                )
            ]
            first.execute(
                "UPDATE app_note SET body = %s || ' of ' || id WHERE id = ANY(%s)",
                [texts.tag(), keys],
            )
            first.execute(
                "INSERT INTO app_note (id, body) VALUES (%s, %s)", [uuid.uuid4(), texts.paragraph()]
            )
            first.execute(psycopg.sql.SQL("PREPARE TRANSACTION {}").format(name))
        finish(name, "COMMIT" if draw.random() < 0.7 else "ROLLBACK")
    return len(keys) + 1


def finish(name: str, how: str) -> None:
    """End a prepared transaction. After a fault, ``finish_late`` does."""
    statement = psycopg.sql.SQL(how + " PREPARED {}").format(name)
    parameters = connection.get_connection_params()
    parameters.pop("cursor_factory", None)
    with psycopg.connect(**parameters, autocommit=True) as other:
        other.execute(statement)


def finish_late() -> None:
    """Roll back what a fault has left prepared, unless another one cuts us off."""
    with suppress(Error, psycopg.Error):
        finish_left(seconds=LATE_SECONDS)


def finish_left(*, seconds: float) -> None:
    """Roll back what a fault has left prepared so long ago: its locks outlast the server."""
    connection.close()  # a fault may have cut it off
    with connection.cursor() as cursor:
        cursor.execute(LEFT, [seconds])
        names = [name for [name] in cursor.fetchall()]
    for name in names:
        finish(name, "ROLLBACK")
