"""A user's project of one app, with a database of its own, for tests of what commands do there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.db import connections
from psycopg import sql

ROOT = Path(__file__).parents[2]
SETTINGS = """
import dj_database_url, os

DATABASES = {"default": dj_database_url.parse(os.environ["SHOP_URL"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = [
    "shop", "django.contrib.contenttypes", "django.contrib.auth", "django.contrib.postgres",
    "pgtrigger", "pgembed_django",
]
PGEMBED_PROVIDERS = {"default": {
    "BACKEND": "pgembed_django.providers.deterministic.DeterministicProvider",
    "MODEL": "bag-of-words", "DIMENSIONS": 64,
}}
"""
IMPORTS = """
from django.db import models
from django.db.models import Q
from pgembed_django import embeddable

"""


class Project:
    """A user's project of one app, ``shop``, with a database of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.settings = "shop_settings"
        (folder / "shop" / "migrations").mkdir(parents=True)
        (folder / "shop" / "__init__.py").touch()
        (folder / "shop" / "migrations" / "__init__.py").touch()
        (folder / "shop_settings.py").write_text(SETTINGS)

    def write(self, models: str) -> None:
        (self.folder / "shop" / "models.py").write_text(IMPORTS + models)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": self.settings,
            "DATABASE_URL": self.url,
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)]),
            # A migration whose lines are moved within a second would be the one from before.
            "PYTHONDONTWRITEBYTECODE": "1",
            "SHOP_URL": self.url,
        }

    def manage(self, *arguments: str, answers: str = "", fails: bool = False) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "django", *arguments],
            env=self.environment,
            input=answers,
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=120,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def migrated(self, models: str, *, answers: str = "") -> str:
        """Write the models, make the migration, apply it. Return its text."""
        self.write(models)
        self.manage("makemigrations", "shop", answers=answers)
        self.manage("makemigrations", "--check")
        self.manage("migrate")
        newest = max((self.folder / "shop" / "migrations").glob("0*.py"))
        return newest.read_text()

    def ask(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as server:
            cursor = server.execute(query)
            return cursor.fetchall() if cursor.description else []

    def triggers(self) -> list[str]:
        """Return the names of the triggers that its own migrations have made."""
        found = self.ask(
            r"SELECT tgname FROM pg_trigger WHERE tgname LIKE 'pgtrigger\_%' ORDER BY tgname"
        )
        return [str(name) for [name] in found]

    def jobs(self) -> list[tuple[object, ...]]:
        return self.ask("SELECT spec, source_pk FROM pgembed_job ORDER BY id")


@contextmanager
def made_in(folder: Path) -> Iterator[Project]:
    """Make a project in a folder, and its database while the block runs."""
    parameters = {
        key: value
        for key, value in connections["default"].get_connection_params().items()
        if key in ("host", "port", "user", "password")
    }
    name = f"shop_{os.getpid()}_{abs(hash(folder)) % 10**8}"
    server = psycopg.connect(**parameters, dbname="postgres", autocommit=True)
    server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    info = server.info
    host = info.host if not info.host.startswith("/") else ""
    query = f"?host={info.host}" if info.host.startswith("/") else ""
    password = f":{info.password}" if info.password else ""
    url = f"postgresql://{info.user}{password}@{host}:{info.port}/{name}{query}"
    try:
        yield Project(folder, url)
    finally:
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        server.close()
