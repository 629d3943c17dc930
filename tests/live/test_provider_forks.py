"""A process that is forked while a model is being loaded: gunicorn's ``--preload`` does so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

# Whatever is at work goes on when a fork is near, and not before.
AT_WORK = """
import os
import threading

begun = threading.Event()


def work(stage):
    if stage != os.environ["STAGE"] or begun.is_set():
        return
    fork = threading.Event()
    os.register_at_fork(before=fork.set)
    begun.set()
    fork.wait()
"""
LOCAL = """
from functools import cached_property

import at_work
import numpy as np
from pgembed_django.executors import Answer, Model, Recipe
from pgembed_django.providers.local import LocalProvider


class Provider(LocalProvider):
    @cached_property
    def recipe(self):
        return Recipe(load="local.load", model="any")


class Played(Model):
    def compute(self, texts):
        at_work.work("compute")
        return Answer(np.ones((len(texts), 64), dtype=np.float32))


def load(*, place):
    at_work.work("load")
    return Played()
"""
WORDLLAMA = """
from types import SimpleNamespace

import at_work
import numpy as np

at_work.work("import")


class WordLlama:
    embedding = np.ones((1, 256))

    @classmethod
    def load(cls, model, **arguments):
        at_work.work("load")
        return cls()

    @property
    def tokenizer(self):
        return SimpleNamespace(encode=lambda text, **_: SimpleNamespace(ids=[0]))
"""
OWN = """
import at_work
from pgembed_django.providers.deterministic import DeterministicProvider as Provider

at_work.work("build")
"""
FORK = """
import os
import signal
import threading

from django.conf import settings

settings.configure(
    PGEMBED_PROVIDERS={
        "default": {"BACKEND": os.environ["BACKEND"], "MODEL": "any", "DIMENSIONS": 64}
    }
)

import at_work
from pgembed_django import providers


def ask():
    providers.get().embed_query("one")


threading.Thread(target=ask, daemon=True).start()
at_work.begun.wait()
child = os.fork()
if not child:
    signal.alarm(10)
    ask()
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
FILES = {
    "at_work.py": AT_WORK,
    "own.py": OWN,
    "local.py": LOCAL,
    "wordllama/__init__.py": WORDLLAMA,
    "wordllama/weights/any_256.safetensors": "",
}
PROVIDERS = "pgembed_django.providers"


@pytest.mark.parametrize(
    ("backend", "stage"),
    [
        ("own.Provider", "build"),
        (f"{PROVIDERS}.wordllama.WordLlamaProvider", "import"),
        (f"{PROVIDERS}.wordllama.WordLlamaProvider", "load"),
        ("local.Provider", "load"),
        ("local.Provider", "compute"),
    ],
)
def test_a_child_embeds_though_its_parent_was_at_it_when_it_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, stage: str
):
    for name, code in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("BACKEND", backend)
    monkeypatch.setenv("STAGE", stage)

    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
