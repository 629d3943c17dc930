from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_error_is_told_once_and_not_by_the_driver_again(make_article: Any, caplog: Any) -> None:
    make_article()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE app_article RENAME contents TO body")
    try:
        with pytest.raises(CommandError, match="contents does not exist"):
            call_command("embed_worker", "--drain", verbosity=0)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE app_article RENAME body TO contents")

    assert [one.getMessage() for one in caplog.records if one.name.startswith("psycopg")] == []
