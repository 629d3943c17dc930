"""Write the messages of pgoutput, as PostgreSQL's documentation describes them."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

UNCHANGED: Final = object()
"""A column whose large value is stored apart, and that an UPDATE has left as it was."""

YEAR_2000 = datetime(2000, 1, 1, tzinfo=UTC)


def piece(message: bytes, *, start: int = 0, end: int = 0) -> bytes:
    """Return a message as it is streamed."""
    return struct.pack("!cQQq", b"w", start, end, 0) + message


def columns(values: Sequence[Any]) -> bytes:
    parts = [struct.pack("!H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack("!I", len(value.encode())) + value.encode())
    return b"".join(parts)


def insert(oid: int, new: Sequence[Any]) -> bytes:
    return struct.pack("!cI", b"I", oid) + b"N" + columns(new)


def update(oid: int, former: Sequence[Any] | None, new: Sequence[Any], *, kind: str = "K") -> bytes:
    before = b"" if former is None else kind.encode() + columns(former)
    return struct.pack("!cI", b"U", oid) + before + b"N" + columns(new)


def delete(oid: int, former: Sequence[Any], *, kind: str = "K") -> bytes:
    return struct.pack("!cI", b"D", oid) + kind.encode() + columns(former)


def truncate(oids: Sequence[int], options: int = 0) -> bytes:
    return struct.pack(f"!cIB{len(oids)}I", b"T", len(oids), options, *oids)


def relation(oid: int, schema: str, table: str, described: Sequence[tuple[str, bool]]) -> bytes:
    """``described``: the columns, and whether each is of the replica identity."""
    parts = [struct.pack("!cI", b"R", oid), text(schema), text(table)]
    parts.append(struct.pack("!cH", b"d", len(described)))
    for name, is_of_identity in described:
        parts += [bytes([is_of_identity]), text(name), struct.pack("!Ii", 25, -1)]
    return b"".join(parts)


def begin(end: int, at: datetime, xid: int) -> bytes:
    return struct.pack("!cQqI", b"B", end, clock(at), xid)


def commit(start: int, end: int, at: datetime) -> bytes:
    return struct.pack("!cBQQq", b"C", 0, start, end, clock(at))


def message(prefix: str, content: bytes) -> bytes:
    head = struct.pack("!cBQ", b"M", 1, 0)
    return head + text(prefix) + struct.pack("!I", len(content)) + content


def emitted(content: Any) -> bytes:
    """Return a message as one of our triggers writes it."""
    return message("pgembed", json.dumps(content).encode())


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def clock(at: datetime) -> int:
    return (at - YEAR_2000) // timedelta(microseconds=1)
