"""A process at the limit of its system: no more files, sockets or threads."""

from __future__ import annotations

import pytest
from django.db import connection

from pgembed_django.models import Job
from tests.app.models import Note, NoteEmbedding
from tests.conftest import wait_until
from tests.live.conftest import providers, wait_for_log

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

PROVIDER = """
import os
import resource
import threading

from pgembed_django.providers.ollama import OllamaProvider

SOFT, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)


class Hungry(OllamaProvider):
    '''From its first text on, while there is a file, the process can open nothing.'''

    def embed_batch(self, texts):
        if not getattr(self, "has_begun", False):
            self.has_begun = True
            threading.Thread(target=self.starve, daemon=True).start()
            self.close()
        return super().embed_batch(texts)

    def starve(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, HARD))
        while os.path.exists("HUNGER"):
            threading.Event().wait(0.1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))
"""

OTHERS = """
    SELECT pg_terminate_backend(pid)
    FROM pg_stat_activity
    WHERE datname = current_database()
      AND pid <> pg_backend_pid()
"""


def test_a_worker_without_file_descriptors_charges_nobody_and_recovers(
    start_worker, server, tmp_path, monkeypatch
):
    hunger = tmp_path / "hunger"
    hunger.touch()
    (tmp_path / "hungry.py").write_text(PROVIDER.replace("HUNGER", str(hunger)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = providers(server)
    config["default"]["BACKEND"] = "hungry.Hungry"
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(20))

    worker = start_worker(PGEMBED_PROVIDERS=config, PGEMBED_POLL_SECONDS=0.5)
    assert "limit of open files" in wait_for_log(worker, "is paused")
    with connection.cursor() as cursor:
        cursor.execute(OTHERS)
    wait_for_log(worker, "Lost the database")
    hunger.unlink()

    embedded = NoteEmbedding.objects.filter(embedding__isnull=False)
    wait_until(lambda: embedded.count() == 20, seconds=60)
    assert set(Job.objects.values_list("attempts", "crashes")) == {(0, 0)}
    assert worker.poll() is None
