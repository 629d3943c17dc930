"""The Django project of the peers that are task backends."""

from __future__ import annotations

import logging
from typing import Any

import dj_database_url
import django
from django.conf import settings


def set_up(url: str, *, apps: list[str], backend: str, **options: Any) -> None:
    """Configure Django with one backend, unless it is configured."""
    if settings.configured:
        return
    settings.configure(
        DATABASES={"default": {**dj_database_url.parse(url), "CONN_MAX_AGE": None}},
        INSTALLED_APPS=apps,
        TASKS={"default": {"BACKEND": backend, "QUEUES": [], "OPTIONS": options}},
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        LOGGING_CONFIG=None,
    )
    django.setup()
    logging.disable(logging.INFO)  # or logging a line per task would be measured


def migrate() -> None:
    """Create the tables."""
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def analyse() -> None:
    """Update the planner's statistics on the tables."""
    from django.db import connection

    connection.cursor().execute("VACUUM ANALYZE")
