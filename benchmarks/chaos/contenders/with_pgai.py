"""pgai's vectorizer worker, polling every second, with its own triggers and tables."""

from __future__ import annotations

import os
import sys

from psycopg import sql

from benchmarks.chaos.contenders import base
from benchmarks.served import MODEL
from benchmarks.soak.server import WIDTH

VECTORIZER = """
    SELECT ai.create_vectorizer(
        'source'::regclass,
        loading => ai.loading_column('body'),
        destination => ai.destination_table('embedded'),
        chunking => ai.chunking_none(),
        embedding => ai.embedding_ollama({model}, {width}, base_url => {url}),
        processing => ai.processing_default(batch_size => {at_once}, concurrency => 1)
    )
"""


class Contender(base.Contender):
    STORED = "SELECT id, embedding::text FROM embedded_store"
    OPEN = "SELECT count(*) FROM ai._vectorizer_q_1"
    GIVEN_UP = "SELECT count(*) FROM ai._vectorizer_q_failed_1"

    def prepare(self) -> None:
        import pgai

        super().prepare()
        pgai.install(self.url)
        self.connection.execute(
            sql.SQL(VECTORIZER).format(
                model=sql.Literal(MODEL),
                width=sql.Literal(WIDTH),
                at_once=sql.Literal(base.AT_ONCE),
                url=sql.Literal(os.environ["CHAOS_SERVER"]),
            )
        )

    def command(self) -> list[str]:
        worker = "from pgai.cli import cli; cli()"
        options = ("--poll-interval", "1s", "--db-url", self.url)
        return [sys.executable, "-c", worker, "vectorizer", "worker", *options]
