"""The settings as mypy reads them: it exits so that an embedded Postgres would go on running."""

from __future__ import annotations

import os

os.environ.setdefault("DATABASE_URL", "postgres://localhost/asked-for-nothing")

from tests.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "tests.typed_app"]  # noqa: F405
