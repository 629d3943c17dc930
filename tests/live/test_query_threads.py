"""A provider that hangs keeps no process alive that has given up waiting for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

HANGS = """
import threading

from pgembed_django.providers.deterministic import DeterministicProvider

begun = threading.Event()


class Provider(DeterministicProvider):
    def embed_batch(self, texts):
        begun.set()
        threading.Event().wait()
"""
SEARCH = """
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.postgres", "pgtrigger", "pgembed_django"],
    PGEMBED_QUERY_SECONDS=0.01,
)
django.setup()

import hangs
from pgembed_django.exceptions import ProviderTimeout
from pgembed_django.models import Space
from pgembed_django.retrieval import query_vectors

space = Space(
    provider="default",
    backend="hangs.Provider",
    model="any",
    dimensions=8,
    options={},
    exchanged="",
)
try:
    query_vectors.vectors.ask(space, "one").vector()
except ProviderTimeout:
    hangs.begun.wait()
    print("gave up")
"""


def test_a_process_ends_while_its_query_is_still_being_embedded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "hangs.py").write_text(HANGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

    done = subprocess.run(
        [sys.executable, "-c", SEARCH], capture_output=True, text=True, timeout=20, check=False
    )

    assert (done.returncode, done.stdout) == (0, "gave up\n"), done.stderr
