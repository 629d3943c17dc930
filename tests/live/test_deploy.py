"""The files in docs/deploy run the tutorial's project: migrations, a worker, a probe, a search."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests import postgres
from tests.conftest import REPOSITORY
from tests.live.conftest import Gated
from tests.live.test_tutorial import TUTORIAL, database
from tests.unit.test_deploy import DEPLOY, containers, procfile

pytestmark = pytest.mark.live

__all__ = ["database"]

SEARCH = """
import django
django.setup()
from blog.models import Article
from pgembed_django import search
print([found.title for found in search(Article, "rising in the fridge")])
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The tutorial's project, with the settings of docs/deploy beside its own."""
    settings, _server, models, *_ = (
        inspect.cleandoc(code)
        for code in re.findall(r"^ *```python\n(.*?)^ *```$", TUTORIAL.read_text(), re.M | re.S)
    )
    for command in (["startproject", "mysite", "."], ["startapp", "blog"]):
        subprocess.run([sys.executable, "-m", "django", *command], cwd=tmp_path, check=True)
    with (tmp_path / "mysite/settings.py").open("a") as file:
        file.write(f"\n{settings}\n")
    (tmp_path / "blog/models.py").write_text(models)
    shutil.copy(DEPLOY / "production.py", tmp_path / "mysite/production.py")
    return tmp_path


@pytest.fixture
def ollama(server: Gated) -> Gated:
    """An Ollama that has pulled the model of production.py."""
    server.models = {"nomic-embed-text:latest": "sha-one"}
    server.width = 768
    return server


@pytest.fixture
def start(
    project: Path, ollama: Gated, database: dict[str, str]
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command line of these files, with this Python."""
    started: list[subprocess.Popen[str]] = []
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "DJANGO_SETTINGS_MODULE": "mysite.production",
        "DATABASE_URL": url(database["NAME"]),
        "SECRET_KEY": "only for this test",
        "ALLOWED_HOSTS": "localhost",
        "OLLAMA_HOST": ollama.url,
    }

    def start(*words: str, reads: str = "") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable if word == "python" else word for word in words],
            cwd=project,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        assert process.stdin
        process.stdin.write(reads)
        process.stdin.close()
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


def url(name: str) -> str:
    """Return the address of a database on the tests' server."""
    parts = psycopg.conninfo.conninfo_to_dict(postgres.url())
    host, port = parts.get("host", ""), parts.get("port", "")
    password = f":{parts['password']}" if "password" in parts else ""
    return f"postgresql://{parts['user']}{password}@/{name}?host={host}" + (
        port and f"&port={port}"
    )


def finished(process: subprocess.Popen[str], *, status: int = 0) -> str:
    assert process.stdout
    told = process.stdout.read()
    assert process.wait(timeout=60) == status, told
    return told


def test_the_files_lead_to_a_search(start: Callable[..., subprocess.Popen[str]]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", TUTORIAL.read_text(), re.M | re.S)
    [written] = [inspect.cleandoc(block) for block in blocks if "Article.objects.create" in block]
    finished(start("python", "manage.py", "makemigrations", "blog"))
    finished(start(*shlex.split(procfile()["release"])))
    finished(start("python", "manage.py", "check", "--deploy", "--tag", "pgembed_probe"))
    finished(start("python", "manage.py", "shell", reads=written))
    command = list(containers()["Deployment/worker"]["command"])
    # Whatever port is free: another one may be taken here.
    command[command.index("--listen") + 1] = "127.0.0.1:0"

    worker = start(*command)
    assert worker.stdout
    while "Completed" not in (line := worker.stdout.readline()):
        assert line, "the worker has ended"
    worker.send_signal(signal.SIGTERM)

    assert "has ended after 2 jobs" in finished(worker)
    assert "Bread that waits for you" in finished(start("python", "-c", SEARCH))
    wanted = ("--fail-on-open-failures", "--fail-below-coverage", "100")
    finished(start("python", "manage.py", "embed_status", *wanted))
