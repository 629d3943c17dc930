"""Messages of a database that is not in UTF-8 are read as they were written."""

from __future__ import annotations

import pytest
from django.db import connections

from pgembed_django.capture.pgoutput import Emitted, parse
from pgembed_django.triggers import sql
from tests.db.test_other_encodings import encoded  # noqa: F401
from tests.unit import pgoutput_writer

pytestmark = pytest.mark.django_db(transaction=True)

SLOT = "pgembed_test_of_encodings"
PEEK = """
    SELECT data
    FROM pg_logical_slot_peek_binary_changes(
        %s, NULL, NULL, 'proto_version', '1', 'publication_names', 'messages', 'messages', 'true'
    )
"""


def test_a_message_has_its_key_whatever_the_encoding(encoded):  # noqa: F811
    with connections[encoded].cursor() as cursor:
        cursor.execute("CREATE PUBLICATION messages")
        cursor.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        try:
            cursor.execute(
                f"SELECT {sql.qualified('pgembed_emit_v1')}(%s, %s, %s, %s, %s)",
                ["enqueue", "shop.ItemEmbedding", 0, "shop_itemembedding", ["café"]],
            )
            cursor.execute(PEEK, [SLOT])
            pieces = [pgoutput_writer.piece(bytes(data)) for [data] in cursor.fetchall()]
        finally:
            cursor.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])

    [emitted] = [one for one in map(parse, map(memoryview, pieces)) if isinstance(one, Emitted)]
    assert emitted.keys == ["café"]
