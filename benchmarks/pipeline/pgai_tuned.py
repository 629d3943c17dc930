"""pgai's vectorizer worker, tuned: batches of 500 rows, four at a time."""

from __future__ import annotations

from benchmarks.pipeline import pgai

embed = pgai.embed


def fill(database: str, url: str, width: int, rows: int) -> None:
    """Create the same as ``pgai``, with larger batches."""
    processing = "ai.processing_default(batch_size => 500, concurrency => 4)"
    pgai.fill(database, url, width, rows, processing=processing)
