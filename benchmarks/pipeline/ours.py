"""Ours: a decorated model, and ``embed_worker`` with twelve requests in flight.

Otherwise at its defaults, with the extra simdjson. The server works on four requests at once. The
others wait there, so that it is never idle. Changes are captured as the environment's CAPTURE says.
"""

from __future__ import annotations

import json
import os
import sys

import django
import psycopg

from benchmarks import captures
from benchmarks.pipeline import texts

AT_ONCE = 12
VIEW = """
    CREATE VIEW embedded AS
    SELECT source_id AS source
    FROM app_articleembedding
    WHERE embedding IS NOT NULL
"""


def fill(database: str, url: str, width: int, rows: int) -> None:
    """Migrate, and save the rows. Their jobs are then pending."""
    _set_up(url, width)
    from django.conf import settings
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(VIEW)
        captures.install(connection, settings.CAPTURE)
        with (
            connection.cursor() as cursor,
            cursor.copy("COPY app_article (title, contents, is_public, views) FROM STDIN") as copy,
        ):
            for number, text in enumerate(texts.texts(rows)):
                copy.write_row((f"{number}", text, True, 0))
        connection.execute("VACUUM ANALYZE")


def embed(database: str, url: str, width: int, rows: int) -> None:
    """Run the worker in this process."""
    _set_up(url, width)
    from django.core.management import execute_from_command_line

    execute_from_command_line([sys.argv[0], "embed_worker"])


def _set_up(url: str, width: int) -> None:
    provider = {
        "BACKEND": "pgembed_django.providers.ollama.OllamaProvider",
        "MODEL": "served",
        "DIMENSIONS": width,
        "OPTIONS": {"base_url": url},
    }
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    settings = {
        "PGEMBED_PROVIDERS": {"default": provider},
        "PGEMBED_CONCURRENCY": AT_ONCE,
        "CAPTURE": os.environ.get("CAPTURE", "trigger"),
    }
    os.environ["BENCHMARK_SETTINGS"] = json.dumps(settings)
    django.setup()
