from __future__ import annotations

import io

import pytest
from django.core.management import call_command


@pytest.mark.django_db
def test_nothing_is_left_to_write_for_makemigrations():
    call_command("makemigrations", "--check", "--dry-run", stdout=io.StringIO())
