"""Hundreds of thousands of real texts: passages of the packages that are installed here."""

from __future__ import annotations

import itertools
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from django.db import connection
from psycopg import sql

LEAST, MOST = 120, 600
AT_ONCE = 5_000

# Turns triggers off: there are many rows, and the cost of triggers is not measured here.
QUIET = "SET session_replication_role = replica"

ARTICLES = """
    COPY app_article (id, title, contents, is_public, views) FROM STDIN
"""
CHUNKS = """
    COPY app_articleembedding (
        source_id, space_id, position, start_offset, end_offset,
        passage, chunk_digest, text_digest, embedding
    ) FROM STDIN
"""
FULLTEXT = """
    UPDATE app_articleembedding
    SET fulltext = to_tsvector('english', translate(passage, './@-~', '     '))
"""


def passages() -> Iterator[str]:
    """Yield paragraphs of the installed library and packages, in a fixed order, each once."""
    seen = set()
    folders = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    files = (
        file
        for folder in folders
        for suffix in ("py", "pyi", "txt", "rst", "md")
        for file in sorted(folder.rglob(f"*.{suffix}"))
    )
    for file in files:
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError):
            continue
        for paragraph in re.split(r"\n\s*\n", text.replace("\0", "")):
            for start in range(0, len(paragraph), MOST):
                passage = paragraph[start : start + MOST].strip()
                if len(passage) >= LEAST and passage not in seen:
                    seen.add(passage)
                    yield passage


def articles(rows: int) -> int:
    """Make the table hold up to ``rows`` articles, none embedded. Return how many it holds."""
    connection.ensure_connection()
    raw: psycopg.Connection = connection.connection
    with raw.cursor() as cursor:
        cursor.execute(QUIET)
        cursor.execute("TRUNCATE app_article, app_articleembedding")
        with cursor.copy(ARTICLES) as copy:
            for number, passage in enumerate(itertools.islice(passages(), rows), start=1):
                copy.write_row((number, passage[:40], passage, True, number % 1000))
        cursor.execute("SET session_replication_role = origin")
        cursor.execute("VACUUM ANALYZE app_article")
        return count(cursor)


def fill(rows: int, *, provider: Any, space_id: int) -> int:
    """Make the table hold up to ``rows`` articles with vectors. Return how many it holds."""
    connection.ensure_connection()
    raw: psycopg.Connection = connection.connection
    with raw.cursor() as cursor:
        cursor.execute(QUIET)
        cursor.execute("TRUNCATE app_article, app_articleembedding")
        numbered = enumerate(itertools.islice(passages(), rows), start=1)
        while batch := list(itertools.islice(numbered, AT_ONCE)):
            vectors = provider.embed_documents([passage for _, passage in batch])
            with cursor.copy(ARTICLES) as copy:
                for number, passage in batch:
                    copy.write_row((number, passage[:40], passage, True, number % 1000))
            with cursor.copy(CHUNKS) as copy:
                for (number, passage), vector in zip(batch, vectors, strict=True):
                    literal = "[" + ",".join(map(str, vector.tolist())) + "]"
                    copy.write_row(
                        (number, space_id, 0, 0, len(passage), passage, b"", b"", literal)
                    )
        cursor.execute(FULLTEXT)
        cursor.execute("SET session_replication_role = origin")
        for table in ("app_article", "app_articleembedding"):
            cursor.execute(sql.SQL("VACUUM FULL ANALYZE {}").format(sql.Identifier(table)))
        return count(cursor)


def count(cursor: psycopg.Cursor) -> int:
    """Return how many articles there are."""
    cursor.execute("SELECT count(*) FROM app_article")
    [articles] = cursor.fetchone() or (0,)
    return int(articles)
