"""Parse what a walsender sends: the stream of a replication connection, and pgoutput's messages.

Pure. Source: PostgreSQL's documentation, "Streaming Replication Protocol" and "Logical Replication
Message Formats", version 1 of the protocol: only whole, committed transactions are sent.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from pgembed_django.declaration.requirements import HIGHEST_PRIORITY

VERBS: Final = ("enqueue", "forget", "forget_all")
PREFIX: Final = b"pgembed\0"
"""Of our triggers' messages."""

MOST_SHOWN = 100
"""Of a message that is not ours, so many characters are logged."""

_DATA = struct.Struct("!cQQq")
_KEEPALIVE = struct.Struct("!cQqB")
_REPLY = struct.Struct("!cQQQqB")
_BEGIN = struct.Struct("!cQqI")
_COMMIT = struct.Struct("!cBQQq")
_RELATION = struct.Struct("!cI")
_TRUNCATE = struct.Struct("!cIB")
_MESSAGE = struct.Struct("!cBQ")
_SHORT = struct.Struct("!H")
_LONG = struct.Struct("!I")

YEAR_2000 = datetime(2000, 1, 1, tzinfo=UTC)
"""Postgres counts from there."""

REPLICA_IDENTITY = 1
"""The flag of a column that identifies a row."""


class Malformed(ValueError):
    """A message that is not as documented, or one of ours that no trigger has written."""


class Keepalive(NamedTuple):
    """All before ``end`` was sent. ``wants_reply``: at once, or the server closes."""

    end: int
    wants_reply: bool


class Begin(NamedTuple):
    """A committed transaction begins."""

    xid: int


class Commit(NamedTuple):
    """It ends. ``end`` is the position behind it."""

    end: int
    at: datetime


class Relation(NamedTuple):
    """What the next changes of a table look like. ``columns`` are those that are published."""

    oid: int
    columns: Sequence[str]
    identity: Sequence[str]


class Change(NamedTuple):
    """A row was written. ``former`` and ``new`` are the published columns, or None."""

    oid: int
    former: Sequence[str | None] | None
    new: Sequence[str | None] | None


class Truncate(NamedTuple):
    """Tables were truncated."""

    oids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Emitted:
    """A message of one of our triggers."""

    verb: str
    spec: str
    priority: int
    table: str
    keys: Sequence[str]


Parsed = Keepalive | Begin | Commit | Relation | Change | Truncate | Emitted


def parse(data: memoryview) -> Parsed | None:
    """Parse what came in one piece. None: it means nothing to us.

    Raises:
        Malformed: a message of ours has other contents than our triggers write.
    """
    if data[0] == 0x6B:  # k
        _, end, _, wants_reply = _KEEPALIVE.unpack_from(data)
        return Keepalive(end, bool(wants_reply))
    message = data[_DATA.size :]
    match message[0]:
        case 0x49 | 0x55 | 0x44:  # I, U, D
            return _change(message)
        case 0x42:  # B
            _, _, _, xid = _BEGIN.unpack_from(message)
            return Begin(xid)
        case 0x43:  # C
            _, _, _, end, clock = _COMMIT.unpack_from(message)
            return Commit(end, YEAR_2000 + timedelta(microseconds=clock))
        case 0x52:  # R
            return _relation(message)
        case 0x54:  # T
            _, count, _ = _TRUNCATE.unpack_from(message)
            return Truncate(struct.unpack_from(f"!{count}I", message, _TRUNCATE.size))
        case 0x4D:  # M
            return _emitted(message)
    return None


def reply(position: int, *, at: datetime) -> bytes:
    """Return what tells the server that all before a position is stored."""
    clock = (at - YEAR_2000) // timedelta(microseconds=1)
    return _REPLY.pack(b"r", position, position, position, clock, 0)


def _change(message: memoryview) -> Change:
    (oid,) = _LONG.unpack_from(message, 1)
    at = 5
    former: Sequence[str | None] | None = None
    if message[0] != 0x49 and message[at] in b"KO":
        former, at = _columns(message, at + 1)
    new = None
    if message[0] != 0x44:
        new, at = _columns(message, at + 1, unchanged=former)
    return Change(oid, former, new)


def _columns(
    message: memoryview, at: int, *, unchanged: Sequence[str | None] | None = None
) -> tuple[list[str | None], int]:
    (count,) = _SHORT.unpack_from(message, at)
    at += 2
    found: list[str | None] = []
    for place in range(count):
        kind = message[at]
        at += 1
        if kind == 0x74:  # t
            (length,) = _LONG.unpack_from(message, at)
            at += 4
            found.append(str(message[at : at + length], "utf-8"))
            at += length
        elif kind == 0x75 and unchanged:  # u: stored apart, and not sent again
            found.append(unchanged[place])
        else:
            found.append(None)
    return found, at


def _relation(message: memoryview) -> Relation:
    _, oid = _RELATION.unpack_from(message)
    at = _RELATION.size
    for _ in range(2):  # its schema and its name
        _, at = _name(message, at)
    (count,) = _SHORT.unpack_from(message, at + 1)
    at += 3
    columns, identity = [], []
    for _ in range(count):
        flags = message[at]
        name, at = _name(message, at + 1)
        at += 8  # its type
        columns.append(name)
        if flags & REPLICA_IDENTITY:
            identity.append(name)
    return Relation(oid, columns, identity)


def _name(message: memoryview, at: int) -> tuple[str, int]:
    end = bytes(message[at : at + 256]).index(0) + at
    return str(message[at:end], "utf-8"), end + 1


def _emitted(message: memoryview) -> Emitted | None:
    at = _MESSAGE.size + len(PREFIX)
    if bytes(message[_MESSAGE.size : at]) != PREFIX:
        return None
    (length,) = _LONG.unpack_from(message, at)
    content = message[at + 4 : at + 4 + length]
    try:
        verb, spec, priority, table, keys = json.loads(str(content, "utf-8"))
        # Half of a surrogate pair is JSON, and no text: it cannot be encoded.
        are_texts = b"\0" not in "".join([spec, table, *keys]).encode()
    except (ValueError, TypeError, RecursionError):
        raise _malformed(content) from None
    # Anybody may write one.
    is_priority = type(priority) is int and abs(priority) <= HIGHEST_PRIORITY
    if verb not in VERBS or not (are_texts and is_priority and isinstance(keys, list)):
        raise _malformed(content)
    return Emitted(verb, spec, priority, table, keys)


def _malformed(content: memoryview) -> Malformed:
    return Malformed(str(content, "utf-8", "replace")[:MOST_SHOWN])
