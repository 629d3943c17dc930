"""Quote a server's message in an error: short, clean, without keys and texts. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from pgembed_django.text import clean

LIMIT: Final = 300
"""How many characters of a server's answer an error quotes."""

READ: Final = 20_000
"""How many characters of an answer are examined: it may echo everything that was sent."""

HIDDEN: Final = "[hidden]"

OPENING: Final = 12
"""How many characters of a text's beginning are searched for in a server's message."""

SHORTEST: Final = 8
"""A shorter beginning is not searched for: it may occur in any sentence."""

_SEPARATORS: Final = re.compile(r"""[\s"'\\]+""")

_SECRETS: Final = re.compile(
    r"""
    (?P<name> \b (?: bearer | basic ) \s+
            | (?: api[_-]?key | authorization | token | secret | password ) ["']? \s* [:=] \s* ["']?
            | (?<= :// ) [^\s/:@]* : (?= [^\s/@]+ @ ) )
    (?! tokens? \b | bearer \b ) [^\s"',;&@]{4,}
    | \b (?: sk | pk | hf | gsk | xai ) [-_] [\w-]{8,}
    """,
    re.VERBOSE | re.IGNORECASE,
)


def said(body: bytes) -> str:
    """Return the reason given in an error's body, in any of the formats that servers use.

    Returns only the reason, never a whole JSON body: validation errors contain the input.
    """
    text = body.decode(errors="replace").lstrip("\ufeff").strip()  # json refuses a BOM in a str
    if not text:
        return "an empty body"
    try:
        return _reason(json.loads(text)) or "no reason given"
    except (ValueError, RecursionError):
        pass
    if text.startswith("<"):
        title = re.search(r"<title[^>]*>(.*?)</title>", text[:READ], re.DOTALL | re.IGNORECASE)
        return f"an HTML page: {' '.join(title[1].split())}" if title else "an HTML page"
    return text


def _reason(value: Any) -> str:
    """Return the first reason found in a JSON value. Empty: there is none."""
    # Ollama: {"error": "…"}; OpenAI: {"error": {…}}; TEI: {"message": …}; FastAPI: {"detail": …}
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "; ".join(filter(None, map(_reason, value)))
    if not isinstance(value, dict):
        return ""
    for key in ("error", "message", "detail", "msg"):
        reason = _reason(value.get(key))
        if reason:
            where = value.get("loc") if key == "msg" else None
            if isinstance(where, list) and len(where) > 1:  # ["body", "encoding_format"]
                return f"{'.'.join(map(str, where[1:]))}: {reason}"
            codes = [str(value[name]) for name in ("type", "code") if value.get(name)]
            return f"{reason} ({', '.join(codes)})" if codes and key != "error" else reason
    return ""


def has_secret(words: str) -> bool:
    """Return whether the words hold what looks like a key or a password."""
    return bool(_SECRETS.search(words))


def quote(words: str, *, secrets: Iterable[str] = (), texts: Iterable[str] = ()) -> str:
    """Return a server's message, made safe for errors, the log, the database and the admin."""
    words = clean(words[:READ])  # JSON may escape a lone surrogate, and a body may contain NUL
    for secret in secrets:
        if secret:
            words = words.replace(secret, HIDDEN)
    words = _SECRETS.sub(lambda match: (match["name"] or "") + HIDDEN, words)
    for text in texts:
        # A server may quote only part of a text, and escape characters in it.
        opening = _opening(text)
        if opening and (found := opening.search(words)):
            words = words[: found.start()] + "[the text]"
    words = " ".join(words.split())
    return words if len(words) <= LIMIT else f"{words[:LIMIT]}…"


def _opening(text: str) -> re.Pattern[str] | None:
    """Return a pattern for the start of a text, escaped or not, or None if it is too short."""
    opening = _SEPARATORS.sub(" ", text.strip())[:OPENING]
    if len(opening) < SHORTEST:
        return None
    return re.compile("".join(map(_as_it_is_or_escaped, opening)))


def _as_it_is_or_escaped(one: str) -> str:
    if one == " ":
        return r"""(?:\\[nrt]?|[\s"'])*"""
    escaped = json.dumps(one)[1:-1]
    if escaped == one:
        return re.escape(one)
    return f"(?:{re.escape(one)}|{escaped.replace(chr(92), chr(92) * 2 + '+')})"
