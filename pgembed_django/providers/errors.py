"""Whose fault an HTTP server's error is, and what of its message may be shown. Pure.

The body counts more than the status: servers answer 400, 413 or 500 to a text that is too long,
and 400 also after a runner has died. A message may echo keys and texts, which are taken from it.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final

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
from pgembed_django.text import clean


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_BATCH_TOO_LARGE: Final = _any_of(
    r"batch size \d+ >",  # TEI
    r"maximum allowed batch size",
    r"tokens per request",  # OpenAI
    r"too many inputs",
    r"array too long",
    r"\d+ (?:items|inputs) or (?:less|fewer)",
    r"at most \d+ (?:items|requests can be in one batch)",  # pydantic, Gemini
    r"texts must be at most \d+",  # Cohere
    r"split into more batches|tokens in batch",  # Mistral
    r"batch size (?:limit is|is invalid)|per submitted batch",  # Voyage, DashScope
)
_ABOVE_QUOTA: Final = _any_of(r"request too large")  # OpenAI, with 429, but waiting does not help
_TOO_LONG: Final = _any_of(
    r"context[ _]?(?:length|window|size)",  # Ollama, OpenAI, vLLM, LiteLLM, llama.cpp
    r"too large to process",  # llama.cpp
    r"(?:input|prompt|text)s? (?:is|are) (?:too long|too large|larger)",
    r"too many (?:input )?tokens",
    r"maximum (?:allowed )?(?:number of tokens|(?:input |sequence |model |token )?(?:length|size))",
    # Pydantic, Mistral, Jina, but no limit on the tokens of a minute.
    r"(?:exceed\w*|at most|maximum|limit\w*|(?:less|more|longer|larger) than)\b\D{0,40}"
    r"\d[\d,]* (?:[\w-]+ )?(?:characters|chars|tokens|bytes)\b(?! per)",
    r"input token count",  # Gemini
    r"expected maxlength",  # Bedrock
    r"range of input length",  # DashScope
    r"string[ _](?:is )?(?:too long|above_max_length)",
)
# The same text fails again each time: see the Ollama issues 9639 and 14657.
_NOT_A_NUMBER: Final = _any_of(r"unsupported value: [+-]?(?:nan|inf)", r"nan or inf")
_MODEL_MISSING: Final = _any_of(
    r"model\b.{0,200}\b(?:not found|does not exist|not exist)", r"model_not_found", r"try pulling"
)
_BUSY: Final = _any_of(
    r"server busy",
    r"pending requests",
    r"(?:loading|starting)(?: the)? model",
    r"model is (?:currently )?(?:loading|overloaded)",
    r"overloaded",
    r"more system memory",
    r"insufficient system resources",  # LM Studio
    r"timed out waiting",
    r"no healthy upstream",
    # LiteLLM, with 500, when the server behind it accepts no connection.
    r"cannot connect to host|connect call failed|all connection attempts failed",
)
_MISCONFIGURED: Final = _any_of(
    r"must be of type",
    r"cannot unmarshal",
    r"(?:missing|unknown) unit|invalid duration",
    r"invalid model name",
    r"model is required",
    r"not support embedding",
    r"unexpected endpoint",  # LM Studio
    r"no models? (?:is |are )?loaded",
    r"insufficient_quota|billing",
    r"(?:invalid|incorrect|missing|no)[_ ](?:\w+ )?api[_ ]key",
    r"api[_ ]key (?:is )?(?:not|missing|invalid)",
    # LiteLLM, with 500, when it has no key for the server behind it.
    r"authentication ?error",
    r"api[_ ]key client option must be set",
    r"missing credentials",
)
# Ollama, if its runner died during the request, and LiteLLM, if the server behind it did, or was
# down before. A text may have killed it.
_RUNNER_LOST: Final = _any_of(r"process has terminated", r"\bconnection error\b")
# Ollama answers 400 when its runner dies. So does LM Studio, also when the model is unloaded.
_RUNNER_DIED: Final = _any_of(
    r"do embedding request",
    r"connection (?:reset|refused)",
    r"broken pipe",
    r"\beof\b",
    r"model has crashed",
    r"model (?:was |is )?unloaded",
)
# Proxies that answer 503 where others answer 502.
_HUNG_UP: Final = _any_of(
    r"reset reason: (?:connection termination|remote reset)",  # Envoy, Istio
    r"connection to the instance had an error",  # Cloud Run
)
# What precedes a message's reason, and the numbers in it that are no amounts.
_NO_AMOUNT: Final = re.compile(
    r"^\S+ answered \d+: |\b(?:id|index|item|code|status)\W{0,2}\d+", re.IGNORECASE
)
_AMOUNT: Final = re.compile(r"(?<![\w.-])\d[\d,]*\d(?![\w-])")
_LIMIT: Final = re.compile(r"(?:length is|less than|size)\D{0,3}(\d{2,})", re.IGNORECASE)
_GIVEN: Final = re.compile(r"(?:requested|given|input)\D{0,3}(\d{2,})", re.IGNORECASE)
_UNIT: Final = re.compile(r"\d (?:[\w-]+ )?(char|byte)(?:acters|s)\b")


def classify(
    status: int, reason: str, *, wait_seconds: float | None, where: str, remedy: str = ""
) -> ProviderError:
    """Return the error that an answer stands for. ``reason`` must come from ``quote``.

    ``remedy``: what to look at if the request was at fault, not its texts.
    """
    message = f"{where} answered {status}: {reason}"
    # These are about the sender of the request, whatever the body says.
    if status in (401, 402, 403):
        return ProviderMisconfigured(_with(message, remedy), retry_after_seconds=wait_seconds)
    if _MISCONFIGURED.search(reason) or status in (405, 501) or 300 <= status < 400:
        return ProviderMisconfigured(message, retry_after_seconds=wait_seconds)
    if status in (502, 520) or _HUNG_UP.search(reason):
        # From a proxy whose server closed the connection: busy, restarted, or crashed by a text.
        return ProviderLost(message, retry_after_seconds=wait_seconds)
    if status == 429 and _ABOVE_QUOTA.search(reason):
        return BatchTooLarge(message)
    if status in (429, 503, 529) or 521 <= status <= 523:
        return ProviderUnavailable(message, retry_after_seconds=wait_seconds)
    if status in (408, 504, 524):
        return ProviderTimeout(message, retry_after_seconds=wait_seconds)
    if _BATCH_TOO_LARGE.search(reason):
        return BatchTooLarge(message)
    if _TOO_LONG.search(reason):
        return InputTooLong(message)
    if _NOT_A_NUMBER.search(reason):
        return InputRefused(message)
    if _MODEL_MISSING.search(reason):
        return ModelMissing(message)
    if _RUNNER_LOST.search(reason):
        return ProviderLost(message, retry_after_seconds=wait_seconds)
    if _BUSY.search(reason):
        return ProviderUnavailable(message, retry_after_seconds=wait_seconds)
    if status == 413:
        return BatchTooLarge(message)
    if status == 404:
        return ProviderMisconfigured(_with(message, remedy))
    if status >= 500 or status in (200, 409, 423, 424, 425, 499) or _RUNNER_DIED.search(reason):
        return ProviderError(message)
    return InputRefused(message)


def _with(message: str, remedy: str) -> str:
    return f"{message.removesuffix('.')}. {remedy}" if remedy else message


def characters_told(refusal: str, sent: str, *, prefix: str = "") -> int:
    """Return how many characters of ``sent`` fit, by a limit in the message, or zero.

    ``prefix`` was sent before them.
    """
    reason = _NO_AMOUNT.sub("", refusal)
    amounts = {int(amount.replace(",", "")) for amount in _AMOUNT.findall(reason)}
    if len(amounts) > 2:
        both = [_LIMIT.search(reason), _GIVEN.search(reason)]
        amounts = {int(found[1]) for found in both if found}
    if not amounts or len(amounts) > 2:
        return 0
    limit, given, unit = min(amounts), max(amounts), unit_of(reason)
    if unit == "char":
        return limit - len(prefix)
    if len(amounts) == 1:
        # If the number of tokens is not told, estimate it: of four English letters, or one Chinese.
        in_bytes = len(sent.encode())
        given = in_bytes if unit else len(sent) // 4 + (in_bytes - len(sent)) // 2
    return int(len(sent) * 0.95 * limit / given) if limit < given else 0


def unit_of(refusal: str) -> str:
    """Return "char" or "byte" if a message names a limit of them. Empty: of tokens."""
    found = _UNIT.search(refusal)
    return found[1] if found else ""


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


def quote(words: str, *, secrets: Iterable[str] = (), texts: Iterable[str] = ()) -> str:
    """Return a server's message, made safe for errors, the log, the database and the admin."""
    words = clean(words[:READ])  # JSON may escape a lone surrogate, and a body may contain NUL
    for secret in secrets:
        if secret:
            words = words.replace(secret, HIDDEN)
    words = _SECRETS.sub(lambda match: (match["name"] or "") + HIDDEN, words)
    words = without_texts(words, texts)
    words = " ".join(words.split())
    return words if len(words) <= LIMIT else f"{words[:LIMIT]}…"


def without_texts(message: str, texts: Iterable[str]) -> str:
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
