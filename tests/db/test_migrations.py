"""The migrations of the test project, as they stand."""

from __future__ import annotations

import io

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader


@pytest.mark.django_db
def test_makemigrations_has_nothing_left_to_write():
    call_command("makemigrations", "--check", "--dry-run", stdout=io.StringIO())


@pytest.mark.django_db
def test_django_writes_the_dependency_on_our_app():
    migrations = MigrationLoader(connection).disk_migrations

    assert ("pgembed", "0001_initial") in migrations["app", "0002_tables"].dependencies


@pytest.mark.django_db
def test_sqlmigrate_shows_the_triggers():
    shown = io.StringIO()
    call_command("sqlmigrate", "app", "0002", stdout=shown)
    assert "pgembed_forget_v1('app.ArticleEmbedding', OLD.\"id\"::text, 0," in shown.getvalue()

    back = io.StringIO()
    call_command("sqlmigrate", "app", "0002", backwards=True, stdout=back)
    assert "DROP TRIGGER pgtrigger_pgembed_update_articleembedding" in back.getvalue()
