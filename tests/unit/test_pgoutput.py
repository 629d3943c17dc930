"""What a walsender sends is parsed as it is documented, and nothing else is taken for ours."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgembed_django.capture import pgoutput
from pgembed_django.capture.pgoutput import (
    Begin,
    Change,
    Commit,
    Emitted,
    Keepalive,
    Malformed,
    Relation,
    Truncate,
)
from tests.unit import pgoutput_writer as written

# As PostgreSQL 18 has sent them, behind the header of each piece.
K40 = 40 * b"k"
PAIR, WHOLE = 0x475F, 0x4768
RECORDED: list[tuple[bytes, Any]] = [
    # CREATE TABLE pair (a int, key text, b text, PRIMARY KEY (a, key)), published without b
    (
        b"R\x00\x00G_public\x00pair\x00d\x00\x02\x01a\x00\x00\x00\x00\x17\xff\xff\xff\xff\x01key\x00\x00\x00\x00\x19\xff\xff\xff\xff",
        Relation(PAIR, ["a", "key"], ["a", "key"]),
    ),
    (b"I\x00\x00G_N\x00\x02t\x00\x00\x00\x011t\x00\x00\x00\x01k", Change(PAIR, None, ["1", "k"])),
    # UPDATE of b
    (b"U\x00\x00G_N\x00\x02t\x00\x00\x00\x011t\x00\x00\x00\x01k", Change(PAIR, None, ["1", "k"])),
    # UPDATE of the key
    (
        b"U\x00\x00G_K\x00\x02t\x00\x00\x00\x011t\x00\x00\x00\x01kN\x00\x02t\x00\x00\x00\x011t\x00\x00\x00\x01l",
        Change(PAIR, ["1", "k"], ["1", "l"]),
    ),
    (b"D\x00\x00G_K\x00\x02t\x00\x00\x00\x011t\x00\x00\x00\x01l", Change(PAIR, ["1", "l"], None)),
    # INSERT with a key that is stored apart
    (
        b"I\x00\x00G_N\x00\x02t\x00\x00\x00\x011t\x00\x00\x00(" + K40,
        Change(PAIR, None, ["1", 40 * "k"]),
    ),
    # UPDATE of b
    (
        b"U\x00\x00G_K\x00\x02t\x00\x00\x00\x011t\x00\x00\x00("
        + K40
        + b"N\x00\x02t\x00\x00\x00\x011u",
        Change(PAIR, ["1", 40 * "k"], ["1", 40 * "k"]),
    ),
    # REPLICA IDENTITY FULL, without a list of columns
    (
        b"R\x00\x00Ghpublic\x00whole\x00f\x00\x02\x01id\x00\x00\x00\x00\x17\xff\xff\xff\xff\x01body\x00\x00\x00\x00\x19\xff\xff\xff\xff",
        Relation(WHOLE, ["id", "body"], ["id", "body"]),
    ),
    (b"I\x00\x00GhN\x00\x02t\x00\x00\x00\x011t\x00\x00\x00\x01x", Change(WHOLE, None, ["1", "x"])),
    (
        b"U\x00\x00GhO\x00\x02t\x00\x00\x00\x011t\x00\x00\x00\x01xN\x00\x02t\x00\x00\x00\x011t\x00\x00\x00\x01y",
        Change(WHOLE, ["1", "x"], ["1", "y"]),
    ),
    (b"D\x00\x00GhO\x00\x02t\x00\x00\x00\x011t\x00\x00\x00\x01y", Change(WHOLE, ["1", "y"], None)),
    (b"T\x00\x00\x00\x02\x00\x00\x00G_\x00\x00Gh", Truncate((PAIR, WHOLE))),
    (
        b"M\x01\x00\x00\x00\x00\x01\xef-\x00pgembed\x00\x00\x00\x00#"
        b'["enqueue", "app.X", 0, "x", ["1"]]',
        Emitted("enqueue", "app.X", 0, "x", ["1"]),
    ),
]


def parsed(message: bytes) -> Any:
    return pgoutput.parse(memoryview(written.piece(message)))


@pytest.mark.parametrize(("message", "meaning"), RECORDED, ids=lambda one: type(one).__name__)
def test_what_a_server_has_sent_is_parsed(message, meaning):
    assert parsed(message) == meaning


columns = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"], min_codepoint=1)))
oids = st.integers(0, 2**32 - 1)
positions = st.integers(0, 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"], min_codepoint=1), max_size=63)


@given(oids, columns)
def test_an_inserted_row_has_no_former_columns(oid, new):
    assert parsed(written.insert(oid, new)) == Change(oid, None, new)


@given(oids, st.none() | columns, columns, st.sampled_from("KO"))
def test_an_updated_row_has_its_former_columns_if_its_identity_has_changed(oid, former, new, kind):
    assert parsed(written.update(oid, former, new, kind=kind)) == Change(oid, former, new)


@given(oids, columns, st.sampled_from("KO"))
def test_a_deleted_row_only_has_former_columns(oid, former, kind):
    assert parsed(written.delete(oid, former, kind=kind)) == Change(oid, former, None)


def test_a_column_that_is_unchanged_and_not_sent_is_what_it_was():
    message = written.update(7, ["key", "old"], [written.UNCHANGED, "new"])

    assert parsed(message) == Change(7, ["key", "old"], ["key", "new"])


def test_a_column_that_is_not_sent_at_all_is_not_known():
    assert parsed(written.update(7, None, [written.UNCHANGED, "new"])).new == [None, "new"]


@given(st.lists(oids, max_size=9), st.integers(0, 3))
def test_several_tables_are_truncated_at_once(truncated, options):
    assert parsed(written.truncate(truncated, options)) == Truncate(tuple(truncated))


@given(oids, names, names, st.lists(st.tuples(names, st.booleans()), max_size=9))
def test_a_relation_names_its_published_columns_and_those_of_its_identity(
    oid, schema, table, described
):
    relation = parsed(written.relation(oid, schema, table, described))

    names, identity = [name for name, _ in described], [name for name, is_of in described if is_of]
    assert relation == Relation(oid, names, identity)


def test_a_relation_of_the_catalog_has_no_schema():
    assert parsed(written.relation(1, "", "pg_class", [("oid", True)])).columns == ["oid"]


@given(positions, st.integers(0, 2**32 - 1))
def test_a_transaction_begins_with_its_number_and_ends_behind_its_commit(end, xid):
    at = datetime(2026, 11, 29, 5, 7, 11, 123456, UTC)

    assert parsed(written.begin(end, at, xid)) == Begin(xid)
    assert parsed(written.commit(end, end, at)) == Commit(end, at)


@given(positions, st.booleans())
def test_a_keepalive_says_what_was_sent_and_whether_to_answer(end, wants_reply):
    keepalive = struct.pack("!cQqB", b"k", end, 0, wants_reply)

    assert pgoutput.parse(memoryview(keepalive)) == Keepalive(end, wants_reply)


@pytest.mark.parametrize(
    "message",
    [
        b"O" + struct.pack("!Q", 1) + b"origin\0",
        b"Y" + struct.pack("!I", 70000) + b"public\0citext\0",
        b"?",
    ],
    ids=["origin", "type", "of a later version"],
)
def test_what_tells_nothing_of_rows_is_passed_over(message):
    assert parsed(message) is None


def test_the_reply_confirms_what_was_written_flushed_and_applied():
    at = datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC)

    assert pgoutput.reply(77, at=at) == b"r" + struct.pack("!QQQqB", 77, 77, 77, 10**6, 0)


# Messages of our triggers, which others may write, too

keys = st.lists(st.text(st.characters(exclude_categories=["Cs"], min_codepoint=1)))


@given(st.sampled_from(pgoutput.VERBS), names, st.integers(-100, 100), names, keys)
def test_a_message_says_which_units_are_to_be_enqueued_or_forgotten(
    verb, spec, priority, table, keys
):
    message = written.emitted([verb, spec, priority, table, keys])

    assert parsed(message) == Emitted(verb, spec, priority, table, keys)


@pytest.mark.parametrize("prefix", ["", "pgembed2", "pgembe", "PGEMBED", "other", "x" * 5000])
def test_messages_of_others_are_passed_over(prefix):
    assert parsed(written.message(prefix, b"\xff\x00 anything")) is None


GOOD: Sequence[Any] = ["enqueue", "app.NoteEmbedding", 0, "app_noteembedding", ["1"]]


def but(place: int, value: Any) -> bytes:
    return json.dumps([*GOOD[:place], value, *GOOD[place + 1 :]]).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"{}",
        b"[]",
        b'["enqueue"]',
        json.dumps([*GOOD, "more"]).encode(),
        json.dumps(dict.fromkeys(map(str, GOOD))).encode(),
        b"[" * 200_000,
        b"1" * 5000,
        but(0, "drop"),
        but(0, ["enqueue"]),
        but(0, None),
        but(1, 1),
        but(1, "a\0b"),
        but(1, "\ud800"),
        but(2, "0"),
        but(2, True),
        but(2, 0.5),
        but(2, 101),
        but(2, float("nan")),
        but(3, None),
        but(4, None),
        but(4, "12"),
        but(4, {"1": "1"}),
        but(4, [1]),
        but(4, [["1"]]),
        but(4, ["1", "a\0b"]),
        but(4, ["\udfff"]),
    ],
    ids=lambda content: content[:80].decode("latin-1"),
)
def test_a_message_that_no_trigger_has_written_is_malformed(content):
    with pytest.raises(Malformed) as raised:
        parsed(written.message("pgembed", content))

    assert len(str(raised.value)) <= pgoutput.MOST_SHOWN


@given(st.binary(max_size=200))
def test_whatever_a_message_contains_is_parsed_or_malformed(content):
    with suppress(Malformed):
        assert isinstance(parsed(written.message("pgembed", content)), Emitted)
