"""Databases of several sizes, filled by plain SQL that does not depend on the app's own code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psycopg
from django.core.management import call_command
from django.db import connections
from psycopg import sql

from benchmarks.app.models import Article
from pgembed_django import spaces
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec

# Triggers are off. All texts differ, and no row has the vector of its present text.
FILL = """
    SET session_replication_role = replica;
    INSERT INTO app_article (title, contents, is_public, views)
    SELECT 'Article ' || n, 'Number ' || n || ' is about the reading of tables.', true, 0
    FROM generate_series(1, {size}) AS n;
    INSERT INTO app_articleembedding (
        source_id, space_id, position, start_offset, end_offset, chunk_digest, text_digest,
        embedding
    )
    SELECT n, {space}, 0, 0, 10, '', '', {vector}
    FROM generate_series(1, {size}) AS n;
    INSERT INTO pgembed_job (spec, source_pk, status, finished_at, claims, items_total)
    SELECT {spec}, n::text, 'succeeded', now() - n * interval '1 ms', 1, 1
    FROM generate_series(1, {size}) AS n;
    INSERT INTO pgembed_job (spec, source_pk, run_at)
    SELECT {spec}, n::text, now() - interval '1 hour' + n * interval '1 ms'
    FROM generate_series(1, {size}) AS n;
    SET session_replication_role = origin;
"""
TABLES = ("app_article", "app_articleembedding", "pgembed_job")


@contextmanager
def created(url: str, names: Iterable[str]) -> Iterator[None]:
    """Create the databases, and drop them at the end."""
    with psycopg.connect(url, autocommit=True) as connection:
        for name in names:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield
        finally:
            connections.close_all()
            for name in names:
                drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
                connection.execute(drop)


def fill(using: str, size: int) -> None:
    """Migrate, and add the rows, their vectors and their jobs."""
    call_command("migrate", database=using, verbosity=0)
    [space] = spaces.ensure(spec(), using=using)
    vector = "[" + ",".join(["0.25"] * space.dimensions) + "]"
    statement = sql.SQL(FILL).format(
        size=sql.Literal(size),
        space=sql.Literal(space.pk),
        vector=sql.Literal(vector),
        spec=sql.Literal(spec().key),
    )
    with connections[using].cursor() as cursor:
        cursor.execute(statement.as_string(connections[using].connection))
        for table in TABLES:
            cursor.execute(f"VACUUM ANALYZE {table}")
        cursor.execute("CHECKPOINT")


def spec() -> Spec:
    """Return the spec of the articles."""
    [found] = specs.of(Article)
    return found
