"""Makes the migrations of the app that is tested, and leaves out the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command

FOLDER = Path(__file__).parent
TESTED = str(settings.SETTINGS_MODULE).removeprefix(f"{__package__}.").partition(".")[0]

is_chosen = (FOLDER / TESTED).is_dir()
collect_ignore = [path.name for path in FOLDER.glob("with_*") if path.name != TESTED]
collect_ignore += [] if is_chosen else ["test_migrations.py"]


@pytest.fixture
def app_label() -> str:
    return TESTED


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings: None, django_db_blocker: Any
) -> None:
    """Make the migrations before the database."""
    with django_db_blocker.unblock():
        if is_chosen:
            call_command("makemigrations", TESTED, verbosity=0)
