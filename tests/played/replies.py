"""What a played server sends and sees. Vectors come from the text alone."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class Reply:
    """``how``: whole; last (whole, then the end, without saying so); cut (half of the body, then
    the end); hang up (nothing at all); silent (nothing until the test is over); drip (a byte now
    and then until the test is over)."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    how: Literal["whole", "last", "cut", "hang up", "silent", "drip"] = "whole"


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    payload: Any
    client: tuple[str, int]


def texts_of(seen: Seen) -> list[str]:
    payload = seen.payload
    for name in ("input", "documents", "texts"):
        if name in payload:
            return payload[name]
    return [payload["prompt"]]


def reply(value: object, status: int = 200, **headers: str) -> Reply:
    names = {name.replace("_", "-"): content for name, content in headers.items()}
    return Reply(status, json.dumps(value).encode(), {"Content-Type": "application/json", **names})


def plain(status: int, body: str, **headers: str) -> Reply:
    return Reply(status, body.encode(), {"Content-Type": "text/plain", **headers})


HANG_UP = Reply(how="hang up")
SILENT = Reply(how="silent")
DRIP = Reply(body=b"[" * 10_000, how="drip")
HTML = plain(200, "<html><title>Sign in</title><p>hello</p></html>")
EMPTY = plain(200, "")
NO_ROUTE = plain(404, "404 page not found")


def vector_of(text: str, width: int) -> np.ndarray:
    """The vector of length one that every played server has for a text."""
    vector = np.random.default_rng(zlib.crc32(text.encode())).standard_normal(width)
    return (vector / np.linalg.norm(vector)).astype(np.float32)
