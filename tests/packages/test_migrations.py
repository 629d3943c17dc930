"""A user's own app has all migrations that it needs, and none is needed elsewhere."""

from __future__ import annotations

import pytest
from django.core.management import call_command

pytestmark = pytest.mark.django_db


def test_the_users_own_app_has_all_migrations(app_label):
    call_command("makemigrations", app_label, check_changes=True, dry_run=True)


def test_the_checks_find_nothing():
    call_command("check", databases=["default"], fail_level="WARNING")
