"""Reduce an error to what all errors of its kind share. Pure, standard library only."""

from __future__ import annotations

import re

MAX_CHARACTERS = 160
"""Short enough for a table column, and for a B-tree entry."""

UNKNOWN = "unknown error"

TRACEBACK = "\nTraceback (most recent call last):"

# An apostrophe inside a word ("can't") does not begin a quotation.
QUOTED = re.compile(
    r"""
      (?<!\w)'[^'\n]*'(?!\w)
    | (?<!\w)"[^"\n]*"(?!\w)
    | `[^`\n]*`
    | “[^”\n]*”
    | «[^»\n]*»
    """,
    re.VERBOSE,
)
# Numbers that distinguish kinds of errors are kept.
STATUS = re.compile(r"\b(HTTP|status|status code|answered) ([1-5]\d\d)\b", re.IGNORECASE)
KEPT = re.compile("[\ue000-\ue009]+")
DIGITS_AS_KEPT = {ord(str(digit)): 0xE000 + digit for digit in range(10)}
KEPT_AS_DIGITS = {0xE000 + digit: str(digit) for digit in range(10)}
# Numbers, keys, hashes, UUIDs, memory addresses: any word with a digit in it.
ID = re.compile(r"[+-]?\b\w*\d\w*(?:[-.:]\w*\d\w*)*\b")
SERIES = re.compile(r"#(?:[\s,;:./]*#)+")
QUOTES = re.compile(r"…(?:[\s,;]*…)+")


def of(error: str) -> str:
    """Return an error's signature, which is the same for errors that differ only in details.

    Numbers and ids become ``#``, and quotations ``…``, but an HTTP status stays. A traceback behind
    the message is left out. It is one non-empty line of at most ``MAX_CHARACTERS``. Idempotent.
    """
    error = error.partition(TRACEBACK)[0]
    found, before = _shortened(error), error
    while found != before:  # a removed number, or the cut at the end, may expose another quotation
        found, before = _shortened(found), found
    return found


def _shortened(error: str) -> str:
    text = " ".join(KEPT.sub("", error.replace("\0", "")).split())
    text = STATUS.sub(lambda match: f"{match[1]} {match[2].translate(DIGITS_AS_KEPT)}", text)
    text = QUOTED.sub("…", text)
    text = QUOTES.sub("…", SERIES.sub("#", ID.sub("#", text)))
    return text.translate(KEPT_AS_DIGITS)[:MAX_CHARACTERS].strip() or UNKNOWN
