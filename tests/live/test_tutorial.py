"""The tutorial, as it is written: its code in a new project, on a database of its own."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import postgres

pytestmark = pytest.mark.live

REPOSITORY = Path(__file__).resolve().parents[2]
TUTORIAL = REPOSITORY / "docs" / "tutorial.md"


@pytest.fixture
def database() -> Iterator[dict[str, str]]:
    """A new, empty database, as it stands in DATABASES."""
    name = f"tutorial_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        known = conninfo_to_dict(postgres.url())
        yield {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": name,
            **{
                key.upper(): str(known[key])
                for key in ("user", "password", "host", "port")
                if key in known
            },
        }
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Run Python in the project's folder, and return what it wrote."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
        "PYTHONPATH": str(REPOSITORY),
    }

    def run(*arguments: str, reads: str = "") -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            input=reads,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_tutorial_leads_to_a_search(
    tmp_path: Path, run: Callable[..., str], database: dict[str, str]
) -> None:
    settings, _server, models, rows, first_search, second_search = (
        inspect.cleandoc(code)
        for code in re.findall(r"^ *```python\n(.*?)^ *```$", TUTORIAL.read_text(), re.M | re.S)
    )
    run("-m", "django", "startproject", "mysite", ".")
    run("manage.py", "startapp", "blog")
    mine = re.sub(r"^DATABASES = .*?^}$", "", settings, flags=re.M | re.S)
    with (tmp_path / "mysite/settings.py").open("a") as file:
        file.write(f"\n{mine}\nDATABASES = {{'default': {database!r}}}\n")
    (tmp_path / "blog/models.py").write_text(models)

    run("manage.py", "makemigrations", "blog")
    run("manage.py", "migrate")
    run("manage.py", "check", "--database", "default")
    run("manage.py", "shell", reads=rows)
    run("manage.py", "embed_worker", "--drain")
    assert found(run, first_search) == "<Article: Bread that waits for you>"

    publish, search = second_search.rsplit("\n\n", 1)
    run("manage.py", "shell", reads=publish)
    run("manage.py", "embed_worker", "--drain")
    assert found(run, "from pgembed_django import search\n" + search) == "<Article: A draft>"


def found(run: Callable[..., str], code: str) -> str:
    """Run code of the tutorial whose last expression is said, in a comment, to be something."""
    *before, expression, said = code.strip().splitlines()
    lines = ["from blog.models import Article", *before, f"print(repr({expression}))"]
    value = run("manage.py", "shell", "--verbosity", "0", reads="\n".join(lines)).strip()
    assert said == f"# {value}"
    return value
