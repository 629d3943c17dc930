"""The tests of a user's project, as the docs write them: by manage.py test, and by pytest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import postgres

pytestmark = pytest.mark.live

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs/how-to/test-your-project.md"
PLUGIN = "pgembed_django.pytest_plugin"

SETTINGS = """
import dj_database_url

DATABASES = {{"default": dj_database_url.parse({url!r})}}
DATABASES["default"]["TEST"] = {{"NAME": "test_user_{pid}"}}
SECRET_KEY = "only for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.postgres", "pgtrigger", "pgembed_django", "shop", "blog"]
TASKS = {{"default": {{"BACKEND": "pgembed_django.tasks.PostgresBackend"}}}}
PGEMBED_PROVIDERS = {{
    "default": {{
        "BACKEND": "pgembed_django.providers.ollama.OllamaProvider",
        "MODEL": "nomic-embed-text",
        "DIMENSIONS": 768,
        "OPTIONS": {{"base_url": "http://localhost:1"}},
    }}
}}
"""
MODELS = """
from django.db import models
from django.db.models import Q

from pgembed_django import embeddable


@embeddable(fields=["title"], when=Q(published_time__isnull=False))
class Article(models.Model):
    title = models.TextField()
    published_time = models.DateTimeField(null=True, blank=True)
"""
SHOP_MODELS = """
from django.db import models


class Order(models.Model):
    def pay(self):
        from shop.tasks import send_receipt

        send_receipt.enqueue(order_id=self.pk)


class Receipt(models.Model):
    order = models.ForeignKey(Order, models.CASCADE)
"""
SHOP_TASKS = """
from pgembed_django.tasks import task
from shop.models import Receipt


@task
def send_receipt(order_id):
    Receipt.objects.create(order_id=order_id)
"""


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = ("DJANGO_SETTINGS_MODULE", "PYTEST_ADDOPTS")
    inherited = {name: value for name, value in os.environ.items() if name not in kept}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**inherited, "PYTHONPATH": f"{folder}:{REPOSITORY}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """What an installation leaves for pytest to find: our entry points, by pyproject.toml."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    folder = tmp_path / f"{project['name'].replace('-', '_')}-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n"
    )
    [(name, module)] = project["entry-points"]["pytest11"].items()
    (folder / "entry_points.txt").write_text(f"[pytest11]\n{name} = {module}\n")
    return tmp_path


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "pytest", "-q", *arguments)


@pytest.fixture
def project(tmp_path: Path, installed: Path) -> Path:
    """A small project, migrated by its own migration, with the tests of the page."""
    unittests, pytests, of_tasks = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S
    )
    (tmp_path / "blog").mkdir()
    (tmp_path / "shop").mkdir()
    files = {
        "manage.py": "from django.core.management import execute_from_command_line as run\n"
        "import sys\nrun(sys.argv)\n",
        "settings.py": SETTINGS.format(url=postgres.url(), pid=os.getpid()),
        "blog/__init__.py": "",
        "blog/models.py": MODELS,
        "blog/tests.py": unittests,
        "shop/__init__.py": "",
        "shop/models.py": SHOP_MODELS,
        "shop/tasks.py": SHOP_TASKS,
        "shop/tests.py": of_tasks,
        "test_blog.py": pytests,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    made = run(
        tmp_path, "manage.py", "makemigrations", "blog", "shop", DJANGO_SETTINGS_MODULE="settings"
    )
    assert made.returncode == 0, made.stderr
    return tmp_path


def test_the_tests_of_the_page_pass_in_a_users_project(project):
    by_django = run(project, "manage.py", "test", DJANGO_SETTINGS_MODULE="settings")
    assert by_django.returncode == 0, by_django.stderr
    assert "Ran 4 tests" in by_django.stderr

    by_pytest = run_pytest(
        project, "--ds=settings", "test_blog.py", "blog/tests.py", "shop/tests.py"
    )
    assert by_pytest.returncode == 0, by_pytest.stdout + by_pytest.stderr
    assert "6 passed" in by_pytest.stdout


@pytest.mark.parametrize("are_migrations_left_out", ["by pytest", "by the settings", "by the app"])
def test_the_tests_of_the_page_pass_without_migrations(project, are_migrations_left_out):
    options = ["--nomigrations"] if are_migrations_left_out == "by pytest" else []
    if are_migrations_left_out == "by the settings":
        with (project / "settings.py").open("a") as settings:
            settings.write('DATABASES["default"]["TEST"]["MIGRATE"] = False\n')
    if are_migrations_left_out == "by the app":
        shutil.rmtree(project / "blog" / "migrations")

    done = run_pytest(
        project, "--ds=settings", *options, "test_blog.py", "blog/tests.py", "shop/tests.py"
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


SEED = """
from django.apps import AppConfig
from django.db.models.signals import post_migrate


def seed(sender, using, **_):
    articles = sender.get_model("Article").objects.using(using)
    articles.get_or_create(title="seed", published_time="2026-01-01T00:00Z")


class BlogConfig(AppConfig):
    name = "blog"

    def ready(self):
        post_migrate.connect(seed, sender=self)
"""
SEEDED = """
import pytest
from blog.models import Article


@pytest.mark.django_db
def test_it():
    assert Article.objects.get().title == "seed"
"""


def test_a_project_may_fill_its_tables_once_they_are_migrated_also_without_migrations(project):
    settings = (project / "settings.py").read_text()
    first = settings.replace(', "blog"]', "]").replace("APPS = [", 'APPS = ["blog", ')
    (project / "settings.py").write_text(first)
    (project / "blog/apps.py").write_text(SEED)
    (project / "test_seeded.py").write_text(SEEDED)

    for options in ([], ["--nomigrations"]):
        done = run_pytest(project, "--ds=settings", *options, "test_seeded.py")
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_plugin_leaves_a_project_without_django_alone(installed):
    (installed / "test_plain.py").write_text(
        "import sys\n\n"
        "def test_it():\n"
        "    ours = [name for name in sys.modules if name.startswith('pgembed_django')]\n"
        f"    assert sorted(ours) == ['pgembed_django', '{PLUGIN}']\n"
        "    assert 'django' not in sys.modules\n"
    )

    done = run_pytest(installed, "-p", "no:django", "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr

    listed = run_pytest(installed, "-p", "no:django", "--fixtures")
    assert "pgembed_run_jobs" in listed.stdout
    without = run_pytest(installed, "-p", "no:django", "-p", "no:pgembed", "--fixtures")
    assert "pgembed_run_jobs" not in without.stdout
