"""Quote a server's message in an error: short, clean, without keys and texts. Pure."""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final

from pgembed_django.text import clean

LIMIT: Final = 300
"""How many characters of a server's answer an error quotes."""

READ: Final = 20_000
"""How many characters of an answer are examined: it may echo everything that was sent."""

HIDDEN: Final = "[hidden]"

THE_TEXT: Final = "[the text]"

RUN: Final = 8
"""So many characters in a row that a message shares with a text are taken from it."""

# Servers and proxies quote in JSON, perhaps several times over, in Python, in HTML or in a URL.
_ESCAPE: Final = re.compile(
    r"""
    \\+ U [0-9a-fA-F]{8}
    | (?: \\+ u [0-9a-fA-F]{4} )+
    | (?: \\+ x [0-9a-fA-F]{2} )+
    | \\+ [nrtvfb"'/]?
    | (?: % [0-9a-fA-F]{2} )+
    | \+
    | & (?: amp; )* (?: \# x? [0-9a-fA-F]{1,6} | [a-zA-Z]{2,6} ) ;
    """,
    re.VERBOSE,
)
_WORD: Final = re.compile(r"[^\W_]+")

_USUAL: Final = frozenset(
    _WORD.findall(
        "accepts again allowed an and answer answered any api are as at authentication "
        "available batch be been body broken busy but by cannot characters client closed "
        "connect connection context could count deadline does due embed embedding embeddings "
        "error errors exceed exceeded exceeding exceeds expected failed fewer for found from "
        "gateway given greater has have however in input inputs internal invalid is it items "
        "key large larger least length less limit list loaded loading long longer max maximum "
        "message missing model most must no not number occurred of on only or out overloaded "
        "parameter pending permitted please process prompt provided reached refused request "
        "requested requests required reset response resulted retry returned sequence server "
        "service should size status string such supported system than that the this time timed "
        "timeout to token tokens too try type unable unavailable unexpected unknown unsupported "
        "upstream use value was were when which while will with within you your"
    )
)
"""Words of servers' messages. A run of only these stays: most texts share some with a message."""

_SECRETS: Final = re.compile(
    r"""
    (?P<name> \b (?: bearer | basic ) (?: \s | %20 )+
            | (?: api[ _-]?key | (?: secret | access | auth )[_-]key | authorization | cookie
                | token | secret | password | passwd | pwd )
              ["'\\]* \s* (?: [:=] | %3D ) [\s"'\\]* (?: (?: bearer | basic | token ) \s+ )?
            | (?<= [?&] ) key =
            | (?<= :// ) (?: [^\s/:@]* : )? (?= [^\s/@]+ @ ) )
    (?! tokens? \b | bearer \b ) [^\s"',;&@\\]{4,}
    | \b (?: sk | pk | hf | gsk | xai | pa | jina | ghp ) [-_] [\w-]{8,}
    | \b (?: AIza | AKIA | eyJ ) [\w.-]{12,}
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
    words = without(words, texts)
    words = " ".join(words.split())
    return words if len(words) <= LIMIT else f"{words[:LIMIT]}…"


def without(message: str, texts: Iterable[str]) -> str:
    """Return a message with "[the text]" for all that it has of the texts, escaped or not.

    That is every run of ``RUN`` characters, and a shorter text as a whole. It takes time in
    proportion to the lengths.
    """
    texts = [clean(text) for text in texts]
    meant = [_ESCAPE.sub(_meant, text) for text in texts]
    known = {" ".join(text.split()).casefold() for text in [*texts, *meant]}
    hidden = [False] * len(message)
    for are_escaped in (False, True):
        letters = list(_letters(message, are_escaped=are_escaped))
        for start, end in _shared("".join(letter for letter, _, _ in letters), known):
            first, last = letters[start][1], letters[end - 1][2]
            hidden[first:last] = [True] * (last - first)
    unusual = [False] * len(message)
    for word in _WORD.finditer(message):
        if word[0].casefold() not in _USUAL:
            unusual[word.start() : word.end()] = [True] * len(word[0])
    kept = []
    for is_hidden, places in groupby(range(len(message)), key=hidden.__getitem__):
        run = list(places)
        words = message[run[0] : run[-1] + 1]
        if is_hidden and (any(unusual[place] for place in run) or not _WORD.search(words)):
            at = len(words) - len(words.lstrip())
            words = words[:at] + THE_TEXT + words[len(words.rstrip()) :]
        kept.append(words)
    return "".join(kept)


def _shared(plain: str, known: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run in ``plain`` that is in one of the known texts."""
    runs = {plain[at : at + RUN] for at in range(len(plain) - RUN + 1)}
    shared: set[str] = set()
    for text in known:
        shared.update(runs.intersection(text[at : at + RUN] for at in range(len(text) - RUN + 1)))
        if len(text) < RUN and _WORD.search(text):
            whole = rf"(?<![^\W_]){re.escape(text)}(?![^\W_])"
            yield from (match.span() for match in re.finditer(whole, plain))
    for at in range(len(plain) - RUN + 1):
        if plain[at : at + RUN] in shared:
            yield at, at + RUN


def _letters(message: str, *, are_escaped: bool) -> Iterator[tuple[str, int, int]]:
    """Yield each character in lower case, with the start and end of what stands for it.

    White space is a single space.
    """
    start, was_space = 0, False
    while start < len(message):
        escape = _ESCAPE.match(message, start) if are_escaped else None
        end = escape.end() if escape else start + 1
        for meant in _meant(escape) if escape else message[start]:
            if not (meant.isspace() and was_space):
                for letter in " " if meant.isspace() else meant.casefold():
                    yield letter, start, end
            was_space = meant.isspace()
        start = end


def _meant(escape: re.Match[str]) -> str:
    """Return the characters that an escape stands for."""
    first, rest = escape[0][0], escape[0].lstrip("\\")
    if first == "+":
        return " "  # in a URL
    if first == "%":
        return bytes.fromhex(rest.replace("%", "")).decode(errors="replace")
    if first == "&":
        return html.unescape("&" + rest[1:].replace("amp;", "")) or "&"
    numbers = re.findall(r"[0-9a-fA-F]+", rest[1:])
    match rest[:1]:
        case "U":
            return chr(min(int(numbers[0], 16), sys.maxunicode))
        case "u":
            return bytes.fromhex("".join(numbers)).decode("utf-16-be", errors="replace")
        case "x":
            found = bytes.fromhex("".join(numbers))
            try:
                return found.decode()
            except UnicodeDecodeError:
                return found.decode("latin-1")
        case "" | '"' | "'" | "/":
            return rest or "\\"
    return " "
