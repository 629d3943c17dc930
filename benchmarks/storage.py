"""Measure the disk space of vectors and their HNSW index, and compare it with the docs' formulas.

Random vectors are stored in a generated table, and indexed as by a worker. The bar: the formulas
are off by at most a tenth. Also measured: how long the build takes with the given memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import django
from django.core.management import call_command

from benchmarks import postgres

PAGE = 8192
PAGE_ROOM = PAGE - 24 - 8
"""The room on a page, without its header and what HNSW keeps at its end."""

ITEM_POINTER = 4
ROW = 150
"""A row's header, keys, offsets, digests and time, and its entries in the table's own indexes."""

EACH_CHARACTER = 2.5
"""Bytes per character of a passage, with its full-text column: English prose, by this benchmark."""

TOASTED = 4 / 3
"""Factor for vectors: TOAST stores them outside their rows, in four pieces per page."""

MOST = 1.1

FILL = """
    INSERT INTO app_articleembedding (
        source_id, space_id, position, start_offset, end_offset, passage,
        chunk_digest, text_digest, embedding, fulltext
    )
    SELECT
        n, %(space)s, 0, 0, length(passage), passage,
        sha256(convert_to(passage, 'UTF8')), sha256(convert_to(passage, 'UTF8')),
        (SELECT array_agg(random() - 0.5) FROM generate_series(1, %(dimensions)s + 0 * n))::vector,
        to_tsvector('english', passage)
    FROM unnest(%(passages)s::text[]) WITH ORDINALITY AS given (passage, n)
"""
PROSE = Path(__file__).resolve().parents[1] / "docs"


def index_bytes(dimensions: int, *, m: int = 16) -> float:
    """Return the bytes per vector in an HNSW index, for vectors of up to 2,000 dimensions.

    An element and its neighbours are on one page if they fit. Source: pgvector, hnswbuild.c.
    """
    element = 72 + 8 + 4 * dimensions
    neighbours = _aligned(4 + 2 * m * 6)
    both = _aligned(element) + neighbours + 2 * ITEM_POINTER
    if both > PAGE_ROOM:
        raise ValueError(f"{dimensions} dimensions are too many for HNSW without halfvec.")
    return PAGE / (PAGE_ROOM // both)


def heap_bytes(dimensions: int, characters: int) -> float:
    """Return the bytes of a chunk, with its passage, its full-text column and its vector.

    Fitted to the results of this benchmark: long passages are compressed, and take less.
    """
    return ROW + EACH_CHARACTER * characters + TOASTED * (8 + 4 * dimensions)


def _aligned(size: int) -> int:
    return -(-size // 8) * 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the number of vectors, their dimensions, and the memory for the build."""
    parser.add_argument("--vectors", type=int, default=5000)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[256, 768, 1536])
    parser.add_argument("--characters", type=int, default=800)
    parser.add_argument("--memory", default="512MB", help="maintenance_work_mem.")


def run(options: argparse.Namespace) -> int:
    """Print the disk space for each number of dimensions."""
    worst = 1.0
    with postgres.database():
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        os.environ["BENCHMARK_SETTINGS"] = json.dumps(
            {"PGEMBED_INDEX_ROWS": 1, "LOGGING_CONFIG": None}
        )
        django.setup()
        call_command("migrate", verbosity=0)
        print(f"{options.vectors:,} vectors, {options.characters} characters each; bytes a vector")
        print("dimensions      row  formula    index  formula   build")
        for dimensions in options.dimensions:
            found = measure(dimensions, options)
            reckoned = (heap_bytes(dimensions, options.characters), index_bytes(dimensions))
            print(
                f"{dimensions:>10}{found[0]:>9,.0f}{reckoned[0]:>9,.0f}"
                f"{found[1]:>9,.0f}{reckoned[1]:>9,.0f}{found[2]:>6.0f} s"
            )
            for measured, expected in zip(found, reckoned, strict=False):
                worst = max(worst, measured / expected, expected / measured)
    print(f"a formula is off by at most {worst - 1:.0%}, to reach: {MOST - 1:.0%}")
    return int(worst > MOST)


def measure(dimensions: int, options: argparse.Namespace) -> tuple[float, float, float]:
    """Return the bytes of a row and of the index per vector, and the seconds of the build."""
    from django.db import connection
    from django.test import override_settings

    from pgembed_django import spaces
    from pgembed_django.declaration import specs
    from pgembed_django.spaces import indexes

    spec = specs.get("app.ArticleEmbedding")
    assert spec
    provider = {
        "BACKEND": "pgembed_django.providers.deterministic.DeterministicProvider",
        "MODEL": "none",
        "DIMENSIONS": dimensions,
    }
    with override_settings(PGEMBED_PROVIDERS={"default": provider}), connection.cursor() as cursor:
        cursor.execute("TRUNCATE app_article, app_articleembedding, pgembed_space CASCADE")
        [space] = spaces.ensure(spec, using="default")
        cursor.execute("VACUUM FULL app_articleembedding")
        before = _table_bytes(cursor)
        cursor.execute(
            FILL,
            {
                "space": space.pk,
                "dimensions": dimensions,
                "passages": list(passages(options.vectors, options.characters)),
            },
        )
        row = (_table_bytes(cursor) - before) / options.vectors
        cursor.execute("SELECT set_config('maintenance_work_mem', %s, false)", [options.memory])
        started = time.perf_counter()
        indexes.build(spec, space, using="default")
        seconds = time.perf_counter() - started
        cursor.execute("SELECT pg_relation_size(%s::regclass)", [indexes.vector_name(space)])
        index = cursor.fetchone()[0] / options.vectors
        indexes.drop(spec, space, using="default")
    return row, index, seconds


def passages(number: int, characters: int) -> Iterator[str]:
    """Yield ``number`` texts of ``characters`` characters, in the words of our docs."""
    words = " ".join(page.read_text() for page in PROSE.rglob("*.md")).split()
    chance = random.Random(1)
    for _ in range(number):
        yield " ".join(chance.choices(words, k=characters // 3))[:characters]


def _table_bytes(cursor: object) -> int:
    cursor.execute("SELECT pg_table_size('app_articleembedding')")  # type: ignore[attr-defined]
    return int(cursor.fetchone()[0])  # type: ignore[attr-defined]
