"""Clean texts, and digest them.

Pure, standard library only.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
import unicodedata
from datetime import UTC, datetime
from typing import Any

SURROGATE = re.compile("[\ud800-\udfff]")

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


def of_markup(field: Any, value: object) -> object:
    """Return the text of a value with markup, if its field can tell it. Else the value.

    Source: Wagtail docs, "Indexing": RichTextField and StreamField have get_searchable_content().
    """
    searchable = getattr(field, "get_searchable_content", None)
    return value if searchable is None or value is None else "\n\n".join(searchable(value))


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
