"""Whose fault an HTTP server's error is, and what of its message may be shown. Pure.

The body counts more than the status: servers answer 400, 413 or 500 to a text that is too long,
and 400 also after a runner has died. A message may echo keys and texts, which are taken from it.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any, Final
from urllib.parse import unquote

from pgembed_django.core.text import clean
from pgembed_django.exceptions import (
    BatchTooLarge,
    InputRefused,
    InputTooLong,
    ModelMissing,
    ProviderError,
    ProviderLost,
    ProviderMisconfigured,
    ProviderTimeout,
    ProviderUnavailable,
)

ANY: Final = range(1000)

# The first line that fits counts: a status, what the message must contain, and the error.
_RULES: Final = [
    (statuses, re.compile(said, re.IGNORECASE), kind)
    for statuses, said, kind in (
        # About the sender of the request, whatever the body says.
        ((401, 402, 403), r"", ProviderMisconfigured),
        (
            ANY,
            r"must be of type|cannot unmarshal|(?:missing|unknown) unit|invalid duration"
            r"|invalid model name|model is required|not support embedding"
            r"|unexpected endpoint|no models? (?:is |are )?loaded"  # LM Studio
            r"|insufficient_quota|billing"
            r"|(?:invalid|incorrect|missing|no)[_ ](?:\w+ )?api[_ ]key"
            r"|api[_ ]key (?:is )?(?:not|missing|invalid)"
            # LiteLLM, with 500, when it has no key for the server behind it.
            r"|authentication ?error|api[_ ]key client option must be set|missing credentials",
            ProviderMisconfigured,
        ),
        ((405, 501, *range(300, 400)), r"", ProviderMisconfigured),
        # From a proxy whose server closed the connection: busy, restarted, or crashed by a text.
        ((502, 520), r"", ProviderLost),
        (
            ANY,  # Envoy, Istio, Cloud Run: they answer 503 where others answer 502
            r"reset reason: (?:connection termination|remote reset)"
            r"|connection to the instance had an error",
            ProviderLost,
        ),
        ((429,), r"request too large", BatchTooLarge),  # OpenAI: waiting does not help
        ((429, 503, 529, 521, 522, 523), r"", ProviderUnavailable),
        ((408, 504, 524), r"", ProviderTimeout),
        (
            ANY,  # TEI, OpenAI, pydantic, Gemini, Cohere, Mistral, Voyage, DashScope
            r"batch size \d+ >|maximum allowed batch size|tokens per request|too many inputs"
            r"|array too long|\d+ (?:items|inputs) or (?:less|fewer)"
            r"|at most \d+ (?:items|requests can be in one batch)|texts must be at most \d+"
            r"|split into more batches|tokens in batch"
            r"|batch size (?:limit is|is invalid)|per submitted batch",
            BatchTooLarge,
        ),
        (
            ANY,  # Ollama, OpenAI, vLLM, LiteLLM, llama.cpp, Gemini, Bedrock, DashScope
            r"context[ _]?(?:length|window|size)|too large to process"
            r"|(?:input|prompt|text)s? (?:is|are) (?:too long|too large|larger)"
            r"|too many (?:input )?tokens|maximum (?:allowed )?"
            r"(?:number of tokens|(?:input |sequence |model |token )?(?:length|size))"
            # Pydantic, Mistral, Jina, but no limit on the tokens of a minute.
            r"|(?:exceed\w*|at most|maximum|limit\w*|(?:less|more|longer|larger) than)\b\D{0,40}"
            r"\d[\d,]* (?:[\w-]+ )?(?:characters|chars|tokens|bytes)\b(?! per)"
            r"|input token count|expected maxlength|range of input length"
            r"|string[ _](?:is )?(?:too long|above_max_length)",
            InputTooLong,
        ),
        # The same text fails again each time: see the Ollama issues 9639 and 14657.
        (ANY, r"unsupported value: [+-]?(?:nan|inf)|nan or inf", InputRefused),
        (
            ANY,
            r"model\b.{0,200}\b(?:not found|does not exist|not exist)|model_not_found|try pulling",
            ModelMissing,
        ),
        # Ollama, if its runner died during the request, and LiteLLM, if the server behind it did,
        # or was down before. A text may have killed it.
        (ANY, r"process has terminated|\bconnection error\b", ProviderLost),
        (
            ANY,
            r"server busy|pending requests|(?:loading|starting)(?: the)? model"
            r"|model is (?:currently )?(?:loading|overloaded)|overloaded|more system memory"
            r"|insufficient system resources|timed out waiting|no healthy upstream"
            # LiteLLM, with 500, when the server behind it accepts no connection.
            r"|cannot connect to host|connect call failed|all connection attempts failed",
            ProviderUnavailable,
        ),
        ((413,), r"", BatchTooLarge),
        ((404,), r"", ProviderMisconfigured),
        ((200, 409, 423, 424, 425, 499, *range(500, 1000)), r"", ProviderError),
        (
            ANY,  # Ollama answers 400 when its runner dies; LM Studio also if the model is unloaded
            r"do embedding request|connection (?:reset|refused)|broken pipe|\beof\b"
            r"|model has crashed|model (?:was |is )?unloaded",
            ProviderError,
        ),
        (ANY, r"", InputRefused),
    )
]


def classify(
    status: int, reason: str, *, wait_seconds: float | None, where: str, remedy: str = ""
) -> ProviderError:
    """Return the error that an answer stands for. ``reason`` must come from ``quote``.

    ``remedy``: what to look at if the request was at fault, not its texts.
    """
    kind = next(
        kind for statuses, said, kind in _RULES if status in statuses and said.search(reason)
    )
    message = f"{where} answered {status}: {reason}"
    if remedy and kind is ProviderMisconfigured:
        message = f"{message.removesuffix('.')}. {remedy}"
    error = kind(message)
    if isinstance(error, ProviderUnavailable):
        error.retry_after_seconds = wait_seconds
    return error


def is_of_characters(refusal: str) -> bool:
    """Return whether a message names a limit of characters or bytes, which is not the model's."""
    return bool(re.search(r"\d (?:[\w-]+ )?(?:characters|chars|bytes)\b", refusal))


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
    (?: \\+ U [0-9a-fA-F]{8} | \\+ u [0-9a-fA-F]{4} )+
    | (?: \\+ x [0-9a-fA-F]{2} )+
    | \\+ [nrtvfb"'/]?
    | (?: % [0-9a-fA-F]{2} )+
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


def reason_of(body: bytes) -> str:
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


def without_secrets(words: str) -> str:
    """Return the words without what looks like a key or a password."""
    return _SECRETS.sub(lambda match: (match["name"] or "") + HIDDEN, words)


def quote(words: str, *, secrets: Iterable[str] = (), texts: Iterable[str] = ()) -> str:
    """Return a server's message, made safe for errors, the log, the database and the admin."""
    words = clean(words[:READ])  # JSON may escape a lone surrogate, and a body may contain NUL
    for secret in secrets:
        if secret:
            words = words.replace(secret, HIDDEN)
    words = without_secrets(words)
    words = without_texts(words, texts)
    words = " ".join(words.split())
    return words if len(words) <= LIMIT else f"{words[:LIMIT]}…"


def without_texts(message: str, texts: Iterable[str]) -> str:
    """Return a message with "[the text]" for all that it has of the texts, escaped or not.

    That is every run of ``RUN`` characters, and a shorter text as a whole. A message that has some
    in an escaped form is returned unescaped. It takes time in proportion to the lengths.
    """
    readings = (_from_url, _unescaped, str)
    known = {" ".join(read(clean(text)).split()).casefold() for text in texts for read in readings}
    for read in readings:
        message = _hide(read(message), known) or message
    return message


def _hide(plain: str, known: Collection[str]) -> str:
    """Return a message with "[the text]" for what it has of known texts. Empty: nothing."""
    letters = list(_letters(plain))
    hidden = [False] * len(plain)
    for start, end in _shared("".join(letter for letter, _ in letters), known):
        first, last = letters[start][1], letters[end - 1][1] + 1
        hidden[first:last] = [True] * (last - first)
    if not any(hidden):
        return ""
    unusual = [False] * len(plain)
    for word in _WORD.finditer(plain):
        if word[0].casefold() not in _USUAL:
            unusual[word.start() : word.end()] = [True] * len(word[0])
    kept = []
    for is_hidden, places in groupby(range(len(plain)), key=hidden.__getitem__):
        run = list(places)
        words = plain[run[0] : run[-1] + 1]
        if is_hidden and (any(unusual[place] for place in run) or not _WORD.search(words)):
            at = len(words) - len(words.lstrip())
            words = words[:at] + THE_TEXT + words[len(words.rstrip()) :]
        kept.append(words)
    return clean("".join(kept))


def _letters(plain: str) -> Iterator[tuple[str, int]]:
    """Yield each character in lower case, with its place. White space is a single space."""
    was_space = False
    for place, one in enumerate(plain):
        if not (one.isspace() and was_space):
            for letter in " " if one.isspace() else one.casefold():
                yield letter, place
        was_space = one.isspace()


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


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_meant, text)


def _from_url(text: str) -> str:
    return _unescaped(text.replace("+", " "))


def _meant(escape: re.Match[str]) -> str:
    """Return the characters that an escape stands for, however often it was quoted."""
    if escape[0][0] == "&":
        return html.unescape("&" + escape[0][1:].replace("amp;", "")) or "&"
    if escape[0][0] == "%":
        return unquote(escape[0])
    said = re.sub(r"\\+", r"\\", escape[0])
    match said[1:2]:
        case "U" | "u":
            units = said.encode().decode("unicode_escape", errors="replace")
            return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case "x":
            found = bytes.fromhex(said.replace("\\x", ""))
            try:
                return found.decode()
            except UnicodeDecodeError:
                return found.decode("latin-1")
        case "" | '"' | "'" | "/":
            return said[1:] or "\\"
    return " "
