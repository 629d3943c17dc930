"""How a role or a database has values printed and read is no matter to a worker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from pgembed_django.checks import check_databases
from pgembed_django.models import Job
from tests.app.models import Note, NoteEmbedding, Product, ProductEmbedding
from tests.db.conftest import reconcile_deeply

pytestmark = pytest.mark.django_db(transaction=True)

ODD = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "bytea_output": "escape",
    "array_nulls": "off",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
    "escape_string_warning": "off",
    "quote_all_identifiers": "on",
    "TimeZone": "Asia/Kathmandu",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
}
VALUES = """
    SELECT ARRAY[1, NULL]::text, 1 / 3.0::float8, now(), interval '1 day 2 hours', bytea 'a', 'a\\b'
"""


@pytest.fixture
def oddly(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run something while all sessions that begin are set up so."""

    def run(what: Callable[[], Any]) -> None:
        odd = " ".join(
            f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in ODD.items()
        )
        options = {**connection.settings_dict["OPTIONS"], "options": odd}
        connection.close()
        with monkeypatch.context() as changed:
            changed.setitem(connection.settings_dict, "OPTIONS", options)
            what()
            connection.close()

    return run


def test_a_worker_of_an_odd_role_embeds_what_others_do(provider, oddly, monkeypatch):
    made: list[Any] = []

    def pitch(row: Product) -> str:
        with connection.cursor() as cursor:
            cursor.execute(VALUES)
            [found] = cursor.fetchall()
        made.append((found[0], found[1], found[3], bytes(found[4]), found[5]))
        return f"{row.title} {made[-1]}"

    monkeypatch.setattr(Product, "pitch", pitch)
    note = Note.objects.create(body="a note")
    Product.objects.create(title="a product")

    oddly(lambda: call_command("embed_worker", "--drain", verbosity=0))

    assert made == [("{1,NULL}", 1 / 3, timedelta(days=1, hours=2), b"a", "a\\b")]
    assert NoteEmbedding.objects.exclude(embedding=None).get().source_id == note.pk
    assert ProductEmbedding.objects.exclude(embedding=None).exists()
    assert set(Job.objects.values_list("status", "attempts")) == {("succeeded", 0)}
    assert reconcile_deeply("app.ProductEmbedding") == 0, "a worker of another role agrees"


@pytest.mark.parametrize("name", ["german", "pg_catalog.german"])
def test_a_check_reads_names_as_they_are(settings, name):
    settings.PGEMBED_TEXT_SEARCH_CONFIG = name
    with connection.cursor() as cursor:
        cursor.execute("SET quote_all_identifiers = on")

    found = check_databases(databases=["default"])

    assert "pgembed.E015" not in [message.id for message in found]
    connection.close()
