"""The wheel and the sdist, in an environment that holds nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import pgembed_django

pytestmark = pytest.mark.live

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "pgembed_django"

CORE = {
    "cronsim",
    "django",
    "django-pgtrigger",
    "django-tasks",
    "numpy",
    "pgvector",
    "psycopg",
    "requests",
    "urllib3",
}
THEIRS = {
    "asgiref",
    "certifi",
    "charset-normalizer",
    "django-stubs-ext",
    "idna",
    "sqlparse",
    "typing-extensions",
}
"""What the core dependencies need themselves."""

EXTRAS = {
    "opentelemetry",
    "prometheus_client",
    "pytest",
    "sentence_transformers",
    "tqdm",
    "wordllama",
}

IMPORT = """
import json, sys, time
before = set(sys.modules)
start = time.perf_counter()
import pgembed_django
seconds = time.perf_counter() - start
print(json.dumps([seconds, sorted(set(sys.modules) - before)]))
"""

SETUP = """
import json, sys, time
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages",
                    "django.contrib.postgres", "django.contrib.admin", "pgtrigger",
                    "pgembed_django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "nowhere"}},
)
import django
start = time.perf_counter()
django.setup()
seconds = time.perf_counter() - start
loaded = sorted(sys.modules)

from django.core.management import get_commands, load_command_class
for name, app in get_commands().items():
    if app == "pgembed_django":
        load_command_class(app, name).create_parser("manage.py", name)

import importlib, pkgutil, pgembed_django
missing = {}
for module in pkgutil.walk_packages(pgembed_django.__path__, "pgembed_django."):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        missing[module.name] = str(error.name)
print(json.dumps([seconds, loaded, missing]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel out of the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(REPOSITORY))
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [found] = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run a Python that has the wheel, what that depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=True)
    executable = str(folder / "bin" / "python")
    call(executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
    return lambda *arguments: call(executable, *arguments, cwd=folder)


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Write a figure where a person sees it, also when all is well."""

    def tell(line: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{line}\n")

    return tell


def call(*arguments: str, cwd: Path | None = None) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of_the_package() -> set[str]:
    return {
        str(path.relative_to(REPOSITORY))
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    assert names == files_of_the_package()
    for suffix in (".sql", ".html", ".css", ".js", "py.typed", "0001_initial.py"):
        assert any(name.endswith(suffix) for name in names), suffix


def test_what_is_shown_with_the_package_has_no_link_into_the_repository(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    _, _, shown = archive.read(metadata).decode().partition("\n\n")

    targets = re.findall(r"\]\(([^)\s]*)", shown)
    assert [target for target in targets if not target.startswith("https://")] == []
    assert "![" not in shown
    # All but the list of the pages is there.
    headings = re.findall(r"^## .*", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    assert re.findall(r"^## .*", shown, re.MULTILINE) == headings
    assert "Every promise has its test: guarantees and limits." in shown
    assert "The overview in the admin" not in shown
    assert "docs/how-to" not in shown


def test_the_sdist_holds_what_is_needed_to_test_it(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert files_of_the_package() <= names
    for wanted in ("tox.ini", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py"):
        assert wanted in names
    for wanted in ("docs/index.md", "mkdocs.yml", "benchmarks/__main__.py", ".github"):
        assert any(name.startswith(wanted) for name in names), wanted


def test_it_needs_the_core_dependencies_and_no_others(python: Callable[..., str]) -> None:
    installed = json.loads(python("-m", "pip", "list", "--format=json"))
    names = {re.sub(r"[-_.]+", "-", one["name"]).lower() for one in installed}
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]

    assert {re.split(r"[<>=\[]", one)[0] for one in declared} == CORE
    assert CORE | {"pgembed-django"} <= names
    # pip and, with older Pythons, setuptools are what makes an environment.
    assert names - CORE - THEIRS <= {"pgembed-django", "pip", "setuptools"}


def test_it_knows_its_version(python: Callable[..., str]) -> None:
    version = "from importlib.metadata import version; print(version('pgembed-django'))"

    assert python("-c", version).strip() == pgembed_django.__version__


def test_importing_it_costs_next_to_nothing(
    python: Callable[..., str], tell: Callable[[str], None]
) -> None:
    seconds, loaded = json.loads(python("-c", IMPORT))

    tell(f"import pgembed_django: {seconds * 1000:.1f} ms, {len(loaded)} modules")
    assert len(loaded) < 30  # Django's models alone bring 300
    assert not {name.partition(".")[0] for name in loaded} & (CORE | EXTRAS | {"pgtrigger"})


def test_it_is_set_up_without_any_extra(
    python: Callable[..., str], tell: Callable[[str], None]
) -> None:
    # The driver alone looks for a libpq, which not every machine has.
    python("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "psycopg[binary]")

    seconds, loaded, missing = json.loads(python("-c", SETUP))

    tell(f"django.setup(): {seconds * 1000:.0f} ms, {len(loaded)} modules")
    assert not {name.partition(".")[0] for name in loaded} & EXTRAS
    assert {name.partition(".")[0] for name in missing.values()} <= EXTRAS, missing
