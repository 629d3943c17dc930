"""A project has only the apps and extras that it needs: all else works without the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from tests import postgres

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
ADMIN = "django.contrib.admin"
CONTRIB = [
    ADMIN,
    *(
        f"django.contrib.{name}"
        for name in ("auth", "contenttypes", "messages", "sessions", "sites", "staticfiles")
    ),
]
NEEDED = ["django.contrib.postgres", "pgtrigger"]
EXTRAS = [
    "opentelemetry",
    "prometheus_client",
    "sentence_transformers",
    "simdjson",
    "tqdm",
    "wordllama",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
MODELS = """
from django.db import models

from pgembed_django import embeddable


@embeddable(fields=["title"])
class Article(models.Model):
    title = models.TextField()
"""
PROJECT = """
import json, os, sys

given = json.loads(os.environ["PROJECT"])
for name in given["missing"]:
    sys.modules[name] = None  # as if it were not installed

import dj_database_url
import django
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import SystemCheckError

DETERMINISTIC = {
    "BACKEND": "pgembed_django.providers.deterministic.DeterministicProvider",
    "MODEL": "bag-of-words",
    "DIMENSIONS": 64,
}
settings.configure(
    DATABASES={"default": dj_database_url.parse(os.environ["DATABASE_URL"])},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    PGEMBED_PROVIDERS={"default": DETERMINISTIC},
    SECRET_KEY="only for tests",
    SITE_ID=1,
    STATIC_URL="static/",
    **given["settings"],
)
django.setup()


def run(name, *arguments):
    call_command(name, *arguments, **({} if name == "check" else {"skip_checks": False}))
"""
WALK = """
from django.template import engines
from django.test import override_settings

run("check", "--database", "default")
run("makemigrations", "blog")
run("migrate", "--verbosity", "0")
run("makemigrations", "--check")

from blog.models import Article
from pgembed_django import search

Article.objects.create(title="Brown bread")
run("embed_worker", "--drain", "--verbosity", "0")
for command in (
    "embed_status", "embed_status --json", "embed_spaces", "embed_reconcile --deep",
    "embed_backfill --dry-run", "embed_backfill --force --no-wait", "embed_retry --all --yes",
    "embed_dismiss --all --yes", "embed_forget --yes", "embed_probe", "check --deploy",
):
    run(*command.split())
print("found:", [row.title for row in search(Article, "bread")])
for engine in engines.all():
    print("written:", engine.from_string("{% load pgembed %}2").render())

in_process = {
    name: {**DETERMINISTIC, "BACKEND": f"pgembed_django.providers.{path}"}
    for name, path in (
        ("small", "wordllama.WordLlamaProvider"),
        ("large", "sentence_transformers.SentenceTransformerProvider"),
    )
}
with override_settings(
    PGEMBED_PROVIDERS={"default": DETERMINISTIC, **in_process}, PGEMBED_TRACING=True
):
    try:
        run("check")
    except SystemCheckError as error:
        print(error)
"""
REFUSED = """
for command in ("check", "makemigrations", "migrate", "embed_worker", "embed_status"):
    try:
        run(command)
    except SystemCheckError as error:
        print(command, error)
"""
PAGE = """
run("migrate", "--verbosity", "0", "--run-syncdb")
from django.contrib.auth.models import User
from django.test import Client

client = Client(headers={"host": "localhost"})
client.force_login(User.objects.create_superuser("root"))
answer = client.get("/admin/pgembed/")
print(answer.status_code, "blog.ArticleEmbedding" in answer.text)
"""
URLS = """
from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
"""


@pytest.fixture
def database() -> Iterator[str]:
    """The address of an empty database."""
    name = f"{postgres.test_database()}_apps"
    with psycopg.connect(postgres.url(), autocommit=True) as server:
        server.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        parts = conninfo.conninfo_to_dict(postgres.url(), dbname=name)
        user, password = parts.get("user", ""), parts.get("password", "")
        yield (
            f"postgres://{user}:{password}@/{name}?host={parts.get('host', '')}"
            f"&port={parts.get('port', '')}".removesuffix("&port=")
        )
        server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def run(
    folder: Path,
    script: str,
    apps: list[str],
    *,
    missing: list[str],
    database: str,
    **settings: object,
) -> str:
    (folder / "blog").mkdir()
    (folder / "blog/__init__.py").touch()
    (folder / "blog/models.py").write_text(MODELS)
    (folder / "urls.py").write_text(URLS)
    settings["INSTALLED_APPS"] = [*apps, "pgembed_django", "blog"]
    done = subprocess.run(
        [sys.executable, "-c", PROJECT + script],
        cwd=folder,
        env={
            **{key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"},
            "DATABASE_URL": database,
            "PROJECT": json.dumps({"missing": missing, "settings": settings}),
            "PYTHONPATH": f"{folder}:{REPOSITORY}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("apps", "settings", "written"),
    [
        ([], {}, ""),
        ([app for app in CONTRIB if app != ADMIN], {"MIDDLEWARE": MIDDLEWARE}, "2"),
    ],
    ids=["no other app", "no admin"],
)
def test_a_project_without_them_embeds_and_searches(tmp_path, database, apps, settings, written):
    templates = TEMPLATES if written else []

    said = run(
        tmp_path,
        WALK,
        [*apps, *NEEDED],
        missing=EXTRAS,
        database=database,
        TEMPLATES=templates,
        **settings,
    )

    assert "found: ['Brown bread']" in said
    assert ("written: 2" in said) == bool(written)
    for extra in ("wordllama", "sentence-transformers", "opentelemetry"):
        assert f"pgembed-django[{extra}]" in said


def test_what_it_cannot_do_without_is_named_by_each_command(tmp_path, database):
    said = run(tmp_path, REFUSED, [], missing=[], database=database)

    assert said.count("HINT: pgembed_django needs it: add 'pgtrigger'.") == 5
    assert said.count("HINT: pgembed_django needs it: add 'django.contrib.postgres'.") == 5


def test_the_admin_needs_no_more_than_django_says(tmp_path, database):
    needed = [app for app in CONTRIB if not app.endswith(("sites", "staticfiles"))]

    said = run(
        tmp_path,
        PAGE,
        [*needed, *NEEDED],
        missing=EXTRAS,
        database=database,
        MIDDLEWARE=MIDDLEWARE,
        ROOT_URLCONF="urls",
        TEMPLATES=TEMPLATES,
    )

    assert said.splitlines()[-1] == "200 True"
