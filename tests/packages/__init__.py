"""Tests with other packages. Each runs in an environment of its own: see tox.ini."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from pathlib import Path


def made_migrations(label: str) -> dict[str, str]:
    """Return ``MIGRATION_MODULES`` of an app whose migrations each run makes, as a user would."""
    folder = Path(tempfile.mkdtemp(prefix="pgembed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    package = folder / f"{label}_migrations"
    package.mkdir()
    (package / "__init__.py").touch()
    sys.path.append(str(folder))
    return {label: package.name}
