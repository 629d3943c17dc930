"""The table that is written, and the triggers that can be on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import psycopg
from psycopg import sql

from benchmarks import captures, postgres
from benchmarks.soak.server import WIDTH

NAMES = """
    SELECT tgname
    FROM pg_trigger
    WHERE tgrelid = 'app_article'::regclass
      AND NOT tgisinternal
"""
# Each job gets a new key: single saves write the same row again before it is embedded, and the job
# table takes only one pending job per unit.
BARE = """
    CREATE SEQUENCE bare_key;
    CREATE FUNCTION bare() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO pgembed_job (spec, source_pk)
        VALUES ('app.ArticleEmbedding', nextval('bare_key')::text);
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER bare AFTER INSERT OR UPDATE ON app_article
    FOR EACH ROW EXECUTE FUNCTION bare();
"""
NOTIFY = """
    CREATE FUNCTION always_notify() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('another', '');
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER always_notify AFTER INSERT OR UPDATE ON app_article
    FOR EACH ROW EXECUTE FUNCTION always_notify();
"""
VECTORIZER = """
    SELECT ai.create_vectorizer(
        'app_article'::regclass,
        loading => ai.loading_column('contents'),
        destination => ai.destination_table('pgai_article'),
        embedding => ai.embedding_ollama('served', {width}),
        enqueue_existing => false
    )
"""
# Names for the triggers of ``trigger_level="statement"``, and of ``capture="message"``: the usual
# ones stay installed too.
STATEMENT = "Together"
MESSAGE = "ByMessage"
FILL = """
    INSERT INTO app_article (title, contents, is_public, views)
    SELECT 'Article ' || n, repeat('Reading the whole table is cheaper. ', 8), true, 0
    FROM generate_series(1, %s) AS n
"""


class Table:
    """``app_article`` with one contender's triggers at a time. A context manager."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = psycopg.connect(url, autocommit=True)
        ours = self._names()
        self._triggers = {"none": [], "ours": ours}
        self._triggers["bare"] = self._added(BARE)
        together = self._added(_triggers(STATEMENT, is_by_statement=True)[0])
        by_row = [name for name in ours if "_insert_" not in name]
        self._triggers["statement"] = [*together, *by_row]
        if postgres.reads_log(url):
            self._triggers["wal"] = []
            by_message = _triggers(MESSAGE, is_by_message=True)
            self._triggers["message"] = [name for one in by_message for name in self._added(one)]
        else:
            print("wal_level is not logical on this server: captures by the log are left out")
        self._triggers["notify"] = [*ours, *self._added(NOTIFY)]
        if _install_pgai(url):
            self._triggers["pgai"] = self._added(sql.SQL(VECTORIZER).format(width=WIDTH))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()

    def has(self, name: str) -> bool:
        """Return whether a contender's trigger is installed."""
        return name in self._triggers

    def begin(self, name: str, *, rows: int = 0) -> None:
        """Start anew, with ``rows`` rows, no jobs and one contender's triggers."""
        queues = ["pgembed_job", *(["ai._vectorizer_q_1"] if self.has("pgai") else [])]
        self.connection.execute("ALTER TABLE app_article DISABLE TRIGGER USER")
        self.connection.execute("TRUNCATE app_article RESTART IDENTITY")
        self.empty(queues)
        if rows:
            self.connection.execute(FILL, [rows])
            self.connection.execute("VACUUM ANALYZE app_article")
        for trigger in self._triggers[name]:
            self.connection.execute(
                sql.SQL("ALTER TABLE app_article ENABLE TRIGGER {}").format(sql.Identifier(trigger))
            )
        captures.publish(self.connection, name)
        self.connection.execute("CHECKPOINT")

    def empty(self, queues: list[str] | None = None) -> None:
        """Delete all jobs."""
        for queue in queues or ["pgembed_job"]:
            self.connection.execute(f"TRUNCATE {queue}")

    def _added(self, statement: str | sql.Composed) -> list[str]:
        before = set(self._names())
        self.connection.execute(statement)
        return [name for name in self._names() if name not in before]

    def _names(self) -> list[str]:
        return [name for [name] in self.connection.execute(NAMES)]


def _triggers(name: str, **how: bool) -> list[str]:
    """Return the SQL of an article's triggers that are made in another way."""
    import pgtrigger

    from benchmarks.app.models import Article
    from pgembed_django.triggers import triggers

    [row] = [
        trigger
        for model, trigger in pgtrigger.registered()
        if model is Article and trigger.name == "pgembed_insert_ArticleEmbedding"
    ]
    watch = replace(row.watch, name=name, **how)
    return [str(trigger.compile(Article).install_sql) for trigger in triggers(watch)]


def _install_pgai(url: str) -> bool:
    try:
        import pgai
    except ImportError:
        print("pgai is not installed: left out")
        return False
    pgai.install(url)
    return True
