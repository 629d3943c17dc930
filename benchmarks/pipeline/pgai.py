"""pgai's vectorizer worker at its defaults: batches of 50 rows, one at a time."""

from __future__ import annotations

import psycopg

from benchmarks.pipeline import texts

TABLE = """
    CREATE TABLE article (
        id bigserial PRIMARY KEY, title text, contents text, is_public bool, views int
    )
"""
PROCESSING = "ai.processing_default()"
CREATE = """
    SELECT ai.create_vectorizer(
        'article'::regclass,
        loading => ai.loading_column('contents'),
        embedding => ai.embedding_ollama('served', {width}, base_url => '{url}'),
        chunking => ai.chunking_none(),
        processing => {processing},
        scheduling => ai.scheduling_none(),
        indexing => ai.indexing_none(),
        destination => ai.destination_table('article_embedding')
    )
"""


def fill(database: str, url: str, width: int, rows: int, *, processing: str = PROCESSING) -> None:
    """Install pgai, and create the table, the rows and the vectorizer."""
    import pgai

    pgai.install(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE)
        with (
            connection.cursor() as cursor,
            cursor.copy("COPY article (contents) FROM STDIN") as copy,
        ):
            for text in texts.texts(rows):
                copy.write_row((text,))
        connection.execute(CREATE.format(width=width, url=url, processing=processing))
        connection.execute(
            "CREATE VIEW embedded AS SELECT id AS source FROM article_embedding_store"
        )
        connection.execute("VACUUM ANALYZE")


def embed(database: str, url: str, width: int, rows: int) -> None:
    """Run pgai's worker in this process."""
    from pgai.cli import vectorizer_worker

    vectorizer_worker(["-d", database, "--poll-interval", "1s", "--log-level", "ERROR"])
