"""The standard library's documentation, embedded by a real worker with real vectors, searched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from tests import postgres

pytestmark = pytest.mark.live

EXAMPLE = Path(__file__).resolve().parents[2] / "example_project"
PATIENCE_SECONDS = 240

# In the example's own process and settings: its tables are not those of these tests.
LOAD = """
import django
django.setup()
from demo import load
from django.core.management import call_command
from library.collect import collect
call_command("migrate", verbosity=0)
print(load.entries(collect(), show=False).written)
"""
SEARCH = """
import json, sys
import django
django.setup()
from library.models import Entry
from pgembed_django import search
public = Entry.objects.filter(is_public=True)
answers = {}
for mode, question in json.load(sys.stdin):
    found = search(public, question, mode=mode, limit=5)
    answers[question] = [found.ranking, found.degraded, [entry.name for entry in found]]
json.dump(answers, sys.stdout)
"""

# The right answer is beyond doubt: each names what the entry is there for.
QUESTIONS = {
    "measure elapsed time precisely": {
        "time.perf_counter",
        "time.perf_counter_ns",
        "time.monotonic",
        "timeit",
        "timeit.timeit",
        "timeit.Timer",
        "timeit.Timer.timeit",
    },
    "wait for a thread to finish": {"threading.Thread.join"},
    "greatest common divisor": {"math.gcd"},
    "delete a whole directory tree": {"shutil.rmtree"},
    "split a shell command line into arguments": {"shlex.split"},
}


@pytest.fixture(scope="module")
def answers() -> Any:
    """What the questions find: loaded, embedded and searched by processes of the example."""
    address = postgres.url()
    name = sql.Identifier(f"pgembed_stdlib_{os.getpid()}")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        try:
            with psycopg.connect(address) as found:
                settings = found.info
                url = (
                    f"postgres://{settings.user}:{quote(settings.password)}@/pgembed_stdlib_{os.getpid()}"
                    f"?host={settings.host}&port={settings.port}"
                )
            assert int(run("-c", LOAD, url=url)) > 8_000
            run("manage.py", "embed_worker", "--drain", url=url)
            asked = [["hybrid", question] for question in QUESTIONS]
            yield json.loads(run("-c", SEARCH, url=url, given=json.dumps(asked)))
        finally:
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name)
            connection.execute(drop)


def run(*arguments: str, url: str, given: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        input=given,
        cwd=EXAMPLE,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATABASE_URL": url,
            "PGEMBED_PROVIDER": "wordllama",
            "PYTHONPATH": os.pathsep.join([str(EXAMPLE), str(EXAMPLE.parent)]),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("question", list(QUESTIONS))
def test_a_question_with_one_answer_finds_it_among_the_first_five(answers, question):
    ranking, degraded, names = answers[question]

    assert QUESTIONS[question] & set(names), names
    assert (ranking, degraded) == ("hybrid", False)
