"""Clean texts, digest them, and measure and cut parts of them.

Pure, standard library only.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from operator import index
from typing import SupportsIndex

from pgembed_django.graphemes import is_boundary

Count = Callable[[str], int]

SURROGATE = re.compile("[\ud800-\udfff]")
SPACES = re.compile(r"\s+")

# Normalizing sorts the combining marks of a character in quadratic time: a megabyte of them would
# take an hour. As in the Stream-Safe Text Format of UAX 15, U+034F divides them, but no text that
# people write. The pattern matches other symbols too, since re has no class for marks.
PILE_OF_MARKS = re.compile("[^\\w\\s\0-\x7f\u034f]{1000}(?=[^\\w\\s\0-\x7f\u034f])")


def of(value: object) -> str:
    """Return a field's value as text, the same in every process.

    Raises:
        TypeError: its str() would only show its memory address.
    """
    if value is None:
        return ""
    lasting = _lasting(value)
    if isinstance(lasting, str):
        return lasting
    return json.dumps(lasting, ensure_ascii=False, default=_lasting)


def _lasting(value: object) -> object:
    """Return a value as a string, or as a dict or list, which JSON can convert."""
    if isinstance(value, (dict, list)):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, datetime) and value.utcoffset() is not None:
        value = value.astimezone(UTC)  # each alias of one database may have a TIME_ZONE of its own
    kind = type(value)
    if kind is memoryview or (kind.__str__, kind.__repr__) == (object.__str__, object.__repr__):
        raise TypeError(f"A {kind.__name__} has no text. Name a method that makes one: text='...'.")
    return str(value)


def clean(text: str) -> str:
    """Return the text in a form that Postgres and every provider accept. Idempotent.

    NUL is removed, lone surrogates become U+FFFD, line ends become LF, the text is normalized
    to NFC, and white space around it is stripped. More than 1,000 marks on one character are
    divided.
    """
    text = str.__str__(text).replace("\0", "")  # a subclass may have methods of its own
    if "\r" in text:
        text = re.sub("\r\n?", "\n", text)
    if not text.isascii():  # ASCII has no surrogates, and is always NFC
        if SURROGATE.search(text):
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        text = unicodedata.normalize("NFC", PILE_OF_MARKS.sub("\\g<0>\u034f", text))
    return text.strip()


def encodable(text: str, encoding: str, *, errors: str = "backslashreplace") -> str:
    """Return a text with only the characters of an encoding, given by its name in Postgres.

    Other characters become Python escapes, or question marks with ``errors="replace"``.
    """
    if encoding in {"UTF8", "SQL_ASCII"}:
        return text
    try:
        codec = codecs.lookup(encoding.replace("WIN", "cp").replace("KOI8", "koi8_")).name
    except LookupError:
        codec = "ascii"
    return text.encode(codec, errors).decode(codec)


def digest(*parts: str | bytes) -> bytes:
    """Return the SHA-256 (32 bytes) of the parts, each preceded by its length.

    So ``("ab", "c")`` and ``("a", "bc")`` differ. A str is encoded as UTF-8.
    """
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "big"))
        sha.update(data)
    return sha.digest()


def counted(count: Callable[[str], object], text: str) -> int:
    """Return the result of a project's own count function.

    Raises:
        TypeError: the result is not a whole number.
    """
    found = count(text)
    if not isinstance(found, SupportsIndex):
        name = getattr(count, "__qualname__", count)
        raise TypeError(f"{name}() returned {type(found).__name__}. Return a whole number.")
    return index(found)


def reach(text: str, limit: int, *, start: int = 0, count: Count = len) -> int:
    """Return the greatest ``end`` for which ``text[start:end]`` counts at most ``limit``."""
    return start + _longest(len(text) - start, limit, lambda n: count(text[start : start + n]))


def reach_back(text: str, limit: int, *, start: int, end: int, count: Count = len) -> int:
    """Return the first index from ``start`` on for which ``text[index:end]`` fits ``limit``."""
    return end - _longest(end - start, limit, lambda n: count(text[end - n : end]))


def _longest(most: int, limit: int, measure: Callable[[int], int]) -> int:
    """Return the greatest length up to ``most`` that measures at most ``limit``.

    Assumes that a longer text never measures less. ``measure`` may be a slow tokenizer, so guesses
    assume an even density to need few calls. Every third one bisects, in case it is uneven.
    """
    fits, exceeds = 0, most + 1
    guess, guesses = limit, 0
    while exceeds - fits > 1:
        guess = min(max(guess, fits + 1), exceeds - 1)
        measured = measure(guess)
        if measured <= limit:
            fits = guess
        else:
            exceeds = guess
        guesses += 1
        if guesses % 3:
            guess = guess * limit // max(measured, 1)
        else:
            guess = min((fits + exceeds) // 2, 2 * fits)
    return fits


def trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span without its outer white space, but keep a space with a combining mark.

    Both arguments and results are offsets in ``text``.
    """
    if start == end or not (text[start].isspace() or text[end - 1].isspace()):
        return start, end
    leading = SPACES.match(text, start, end)
    if leading:
        start = leading.end() - (not is_boundary(text, leading.end(), start=start))
    tail = start + len(text[start:end].rstrip())
    return start, tail + (tail < end and not is_boundary(text, tail, start=start))


def cut(text: str, limit: int, *, count: Count = len) -> str:
    """Return the longest start of ``text`` that counts at most ``limit`` and ends after a word.

    If that would drop more than half of what fits, the last word is cut, between graphemes.
    """
    end = reach(text, limit, count=count)
    if end == len(text):
        return text
    words = [match.start() for match in SPACES.finditer(text, end // 2, end + 1)]
    for position in (*reversed(words), *range(end, 0, -1)):
        if 0 < position <= end and is_boundary(text, position):
            return text[: trim(text, 0, position)[1]]
    return ""
