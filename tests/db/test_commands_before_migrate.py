"""Commands whose tables are not migrated yet say so in a sentence, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

pytestmark = pytest.mark.django_db

KEY = "app.ArticleEmbedding"


def refusal(*arguments: str) -> CommandError:
    with pytest.raises(CommandError) as caught:
        call_command(*arguments, verbosity=0)
    return caught.value


@pytest.mark.parametrize(
    "arguments",
    [
        ("embed_reconcile", "--deep", "--specs", KEY),
        ("embed_backfill", KEY, "--dry-run", "--force"),
    ],
)
def test_a_column_that_is_not_there_is_named(
    arguments: tuple[str, ...], make_article: Any, run_jobs: Any
) -> None:
    make_article()
    run_jobs()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE app_article RENAME contents TO body")

    refused = refusal(*arguments)

    assert str(refused).startswith(
        "A table or function does not match this code: column app_article.contents does not exist. "
        "Run manage.py makemigrations and migrate"
    )
    assert refused.returncode == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("embed_reconcile", "--specs", KEY),
        ("embed_backfill", KEY),
        ("embed_backfill", KEY, "--dry-run"),
    ],
)
def test_a_table_that_is_not_there_is_named(arguments: tuple[str, ...]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE app_articleembedding")

    refused = refusal(*arguments)

    assert str(refused) == (
        "The database 'default' has no table for app.ArticleEmbedding. "
        "Run manage.py makemigrations and manage.py migrate."
    )
    assert refused.returncode == 2
