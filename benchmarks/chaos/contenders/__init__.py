"""The contenders of the chaos benchmark. Each module has a class ``Contender``."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from benchmarks.chaos.contenders.base import Contender

MODULES = {
    "ours": "ours",
    "pgqueuer": "with_pgqueuer",
    "procrastinate": "with_procrastinate",
    "django-ox": "with_django_ox",
    "pgai": "with_pgai",
}


def is_installed(name: str) -> bool:
    """Return whether a contender can run, and print it if it cannot."""
    package = "pgembed_django" if name == "ours" else name.replace("-", "_")
    if find_spec(package):
        return True
    print(f"{name} is not installed: left out")
    return False


def contender(name: str) -> Contender:
    """Return a contender, on the database that DATABASE_URL names."""
    found: Contender = import_module(f"{__name__}.{MODULES[name]}").Contender()
    return found
