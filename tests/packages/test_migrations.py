"""A user's own apps have all migrations that they need, and none is needed elsewhere."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.core.management import call_command

pytestmark = pytest.mark.django_db


def test_the_users_own_apps_have_all_migrations():
    call_command("makemigrations", *settings.MIGRATION_MODULES, check_changes=True, dry_run=True)


def test_the_checks_find_nothing():
    call_command("check", databases=["default"], fail_level="WARNING")
