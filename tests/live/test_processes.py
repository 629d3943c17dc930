"""What only a process of its own shows: what it imports, what it prints, and how it ends."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.live


LOADED = """
import sys
import django
django.setup()
import pgembed_django.contrib.metrics, pgembed_django.contrib.tracing
import pgembed_django.management.commands.embed_worker
from django.core.management import call_command
call_command("check")
print([name for name in ("prometheus_client", "opentelemetry") if name in sys.modules])
"""


def test_what_nobody_asked_for_is_not_loaded() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", LOADED],
        cwd=REPOSITORY,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert answer.stdout.splitlines()[-1] == "[]"


def test_nothing_is_executed_to_be_collected():
    code = "import library.collect, sys; library.collect.collect(); print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY / "example_project",
        capture_output=True,
        text=True,
        check=True,
    )
    imported = set(ran.stdout.split())
    assert not imported & {"this", "antigravity", "turtle", "tkinter", "unittest", "idlelib"}
    assert ran.stderr == ""


def test_wordllama_leaves_the_applications_logging_alone():
    code = (
        "import logging; from pgembed_django.providers.wordllama import WordLlamaProvider;"
        "WordLlamaProvider(alias='a', model='l2_supercat', dimensions=64).embed_query('x');"
        "print(logging.root.handlers, logging.root.level)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == f"[] {logging.WARNING}"


MODELS = """
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.utils.translation import gettext_lazy as _

from pgembed_django import embeddable


class Author(models.Model):
    name = models.TextField()


for number, keywords in enumerate(
    [
        {"fields": ["title", "author__name"]},
        {"fields": ["nope__name"]},
        {"fields": Author.objects.all()},
        {"fields": ["title"], "when": Author.objects.filter(name="x")},
        {"fields": ["title"], "when": models.Q(author__name="x")},
        {"fields": ["title"], "when": models.Q(author__in=Author.objects.all())},
        {"fields": ["title"], "text": _("title")},
        {"fields": ["title"], "name": _("Vectors")},
    ]
):
    try:

        @embeddable(**keywords)
        class Book(models.Model):
            title = models.TextField()
            author = models.ForeignKey(Author, models.CASCADE, related_name=f"books{number}")

            class Meta:
                db_table = f"book{number}"
                verbose_name = _("book")

    except ImproperlyConfigured as error:
        print(error)
"""
SETUP = """
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.postgres", "pgtrigger", "pgembed_django", "library"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}},
)
django.setup()
"""


def test_refusals_come_from_the_models_module_itself(tmp_path):
    (tmp_path / "library").mkdir()
    (tmp_path / "library/__init__.py").touch()
    (tmp_path / "library/models.py").write_text(MODELS)

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SETUP],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    said = [line.removeprefix("@embeddable on Book: ") for line in done.stdout.splitlines()]
    assert [line.partition(".")[0] for line in said] == [
        "fields name 'author__name', which is in another table",
        "no field named 'nope__name'",
        "fields is a QuerySet",
        "when is a QuerySet",
        "when: 'author__name' follows a relation, and a trigger sees one row",
        "when: QuerySet is neither a column of the row nor a constant",
        "text is a __proxy__",
        "name is a __proxy__",
    ]


def test_an_unreachable_database_is_a_message_and_no_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "django", "check", "--database", "default"],
        env={
            **os.environ,
            "DATABASE_URL": "postgresql://nobody:hunter2@localhost:1/nothing",
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        },
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1
    assert "(pgembed.E010) The database 'default' cannot be reached: " in done.stderr
    assert "HINT: Start its server" in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr


def test_settings_without_a_database_are_a_message_and_no_traceback(tmp_path):
    (tmp_path / "without.py").write_text("from tests.settings import *\nDATABASES = {}\n")

    done = subprocess.run(
        [sys.executable, "-m", "django", "check", "--pythonpath", str(tmp_path)],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "without"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1
    assert "(pgembed.E005) @embeddable on Article: its database 'default' is" in done.stderr
    assert "HINT: Vectors and triggers need PostgreSQL." in done.stderr
    assert "Traceback" not in done.stderr
