"""Ours: a decorated model and ``embed_worker``, with a short lease and without the reconciler."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.chaos.contenders import base
from benchmarks.served import MODEL
from benchmarks.soak.server import WIDTH


class Contender(base.Contender):
    SOURCE = "SELECT id, contents FROM app_article"
    STORED = "SELECT source_id, embedding::text FROM app_articleembedding"
    WRITE = """
        INSERT INTO app_article (id, title, contents, is_public, views) VALUES (%s, '', %s, true, 0)
        ON CONFLICT (id) DO UPDATE SET contents = excluded.contents
    """
    DELETE = "DELETE FROM app_article WHERE id = %s"
    OPEN = "SELECT count(*) FROM pgembed_job WHERE status IN ('pending', 'running')"
    GIVEN_UP = "SELECT count(*) FROM pgembed_job WHERE status = 'failed'"

    def prepare(self) -> None:
        os.environ.update(self.environment())
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        call_command("migrate", verbosity=0)
        connections.close_all()

    def command(self) -> list[str]:
        return [sys.executable, "-m", "django", "embed_worker"]

    def environment(self) -> dict[str, str]:
        settings: dict[str, Any] = {
            "PGEMBED_PROVIDERS": {
                "default": {
                    "BACKEND": "pgembed_django.providers.ollama.OllamaProvider",
                    "MODEL": MODEL,
                    "DIMENSIONS": WIDTH,
                    "OPTIONS": {"base_url": os.environ["CHAOS_SERVER"]},
                }
            },
            # As many texts at once as the other contenders.
            "PGEMBED_BATCH_SIZE": base.AT_ONCE // 2,
            "PGEMBED_CONCURRENCY": 2,
            "PGEMBED_LEASE_SECONDS": base.LEASE_SECONDS,
            "PGEMBED_REAP_SECONDS": 1,
            # Without the reconciler, so that only the queue is tested.
            "PGEMBED_RECONCILE_SECONDS": 0,
        }
        return {
            "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
            "BENCHMARK_SETTINGS": json.dumps(settings),
        }

    def text_of(self, body: str) -> str:
        from benchmarks.app.models import Article
        from pgembed_django.declaration import specs

        [spec] = specs.of(Article)
        [chunk] = spec.chunker.split(spec.text_of(Article(title="", contents=body)))
        return chunk.text
