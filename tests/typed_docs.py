"""mypy and pyright, in strict mode, find nothing in the examples of search.

Read from the README and the docs, so that they cannot differ. Run by ``tox run -e quality``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.unit.test_docs import DOCS, README, ROOT, blocks

MODELS, SEARCH = [
    next(block for block in blocks(README, "python") if words in block)
    for words in ("class Article", "import search")
]
SETTINGS = next(block for block in blocks(README, "python") if "PGEMBED_PROVIDERS" in block)

NOTE = """
@embeddable(fields=["title"])
class Note(models.Model):
    title = models.TextField()
    author = models.TextField()
"""

GIVEN = """
from blog.models import Article, Note
from django.core.wsgi import get_wsgi_application
from pgembed_django import search, similar_to, warm_up

__all__ = [
    "Article", "Note", "article", "get_wsgi_application", "me", "search", "similar_to", "warm_up"
]
article = Article()
me = "me"
"""
"""What the examples take for granted."""

TYPES = """
from typing import assert_type
from pgembed_django import Results

assert_type(results, Results[Article])
for hit in results.hits:
    assert_type((hit.score, hit.instance, hit.instance.title), tuple[float, Article, str])
for row in results:
    assert_type(row, Article)
"""

MYPY = """
[mypy]
strict = true
plugins = mypy_django_plugin.main
[mypy-pgembed_django.*]
follow_imports = silent
[mypy.plugins.django-stubs]
django_settings_module = settings
"""


def make_project(folder: Path, models: str) -> None:
    """Write a project with these models and a module for each example."""
    files = {
        "settings.py": "INSTALLED_APPS = ['django.contrib.contenttypes', 'blog']\n" + SETTINGS,
        "blog/__init__.py": "",
        "blog/models.py": models,
        "given.py": GIVEN,
        "readme.py": f"from given import *\n{SEARCH}\n{TYPES}",
    }
    for number, block in enumerate(blocks(DOCS / "reference/search.md", "python")):
        files[f"example_{number}.py"] = f"from given import *\n{block}\n"
    (folder / "blog").mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)


def check(folder: Path, *arguments: str) -> None:
    """Run a type checker in the project."""
    paths = os.pathsep.join(map(str, (folder, ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "MYPYPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_finds_nothing_in_the_examples(tmp_path: Path) -> None:
    make_project(tmp_path, f"{MODELS}\n{NOTE}")
    (tmp_path / "mypy.ini").write_text(MYPY)

    check(tmp_path, "mypy", ".")


def test_pyright_finds_nothing_in_the_examples_once_fields_have_types(tmp_path: Path) -> None:
    """It cannot know them from django-stubs, which tell mypy's plugin alone."""
    fields = {"TextField": "str", "DateTimeField": "datetime | None"}
    models = re.sub(
        r"(\w+) = models\.(\w+)\(",
        lambda match: (
            f"{match[1]}: models.{match[2]}[{fields[match[2]]}, {fields[match[2]]}] "
            f"= models.{match[2]}("
        ),
        f"{MODELS}\n{NOTE}",
    )
    make_project(tmp_path, f"from datetime import datetime\n{models}")
    options = {
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "extraPaths": [".", str(ROOT)],
        "include": [".", str(ROOT / "tests/typed.py")],
        "exclude": ["settings.py"],  # "INSTALLED_APPS +=" changes a constant
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(options))

    check(tmp_path, "basedpyright", "--pythonpath", sys.executable)
