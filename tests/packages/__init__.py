"""Tests with other packages. Each runs in an environment of its own: see tox.ini."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from pathlib import Path


def made_migrations(*labels: str) -> dict[str, str]:
    """Return ``MIGRATION_MODULES`` of apps whose migrations each run makes, as a user would."""
    folder = Path(tempfile.mkdtemp(prefix="pgembed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    packages = {label: folder / f"{label}_migrations" for label in labels}
    for package in packages.values():
        package.mkdir()
        (package / "__init__.py").touch()
    sys.path.append(str(folder))
    return {label: package.name for label, package in packages.items()}
