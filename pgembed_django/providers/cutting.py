"""Prepare a text for sending: well-formed, and cut to the model's context. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

MAX_CUTS: Final = 12
"""How many times to cut one text before it is refused."""

# What precedes a message's reason, and the numbers in it that are no amounts.
_NO_AMOUNT: Final = re.compile(
    r"^\S+ answered \d+: |\b(?:id|index|item|code|status)\W{0,2}\d+", re.IGNORECASE
)
_AMOUNT: Final = re.compile(r"(?<![\w.-])\d[\d,]*\d(?![\w-])")
_LIMIT: Final = re.compile(r"(?:length is|less than|size)\D{0,3}(\d{2,})", re.IGNORECASE)
_GIVEN: Final = re.compile(r"(?:requested|given|input)\D{0,3}(\d{2,})", re.IGNORECASE)
_UNIT: Final = re.compile(r"\d (?:[\w-]+ )?(characters|chars|bytes)\b")
_SHARES: Final = (0.8, 0.6, 0.4, 0.25, 0.12)


def well_formed(text: str) -> str:
    """Return the text with "?" for lone surrogates: UTF-8 and tokenizers reject them."""
    return text.encode(errors="replace").decode()


def shorten(text: str, *, characters: int) -> str:
    """Return the start of ``text``, at most ``characters`` long, ending with a whole word.

    The last word is broken only if its part here is longer than a quarter of ``characters``.
    """
    if len(text) <= characters:
        return text
    start = text[:characters]
    if not text[characters].isspace():
        end = max(start.rfind(space) for space in " \n\t")
        if end > characters * 3 // 4:
            start = start[:end]
    return start.rstrip() or start


def to_tokens(text: str, *, limit: int, count: Callable[[str], int | None]) -> str:
    """Return the start of ``text`` that has at most ``limit`` tokens.

    If ``count`` returns None, return as many characters as that many tokens could have.
    """
    characters = limit * 12
    while True:
        text = shorten(text, characters=characters)
        counted = count(text)
        if counted is None or counted <= limit or characters == 1:
            return text
        characters = max(1, min(len(text) - 1, len(text) * limit // counted))


def room(
    text: str,
    *,
    cuts: int,
    message: str,
    learnt: int | None,
    sent: str | None = None,
    prefix: str = "",
) -> int:
    """Return how many characters of a refused text to try next.

    ``text`` is the whole text, ``cuts`` how many times it was cut before, and ``sent`` what was
    left of it then, without the ``prefix`` that was sent too. It follows the limit in the server's
    message, or else ``learnt``, the length of another text that fit.
    """
    sent = text if sent is None else sent
    told = _told(message, sent, prefix=prefix)
    if 0 < told < len(sent) and cuts < len(_SHARES):
        return told
    if cuts == 0:
        return learnt if learnt and learnt < len(text) else max(1, int(len(text) * _SHARES[0]))
    share = _SHARES[min(cuts, len(_SHARES) - 1)] / 2 ** max(0, cuts - len(_SHARES) + 1)
    return max(1, min(int(len(text) * share), len(sent) * 3 // 4))


def unit_of(message: str) -> str:
    """Return "characters" or "bytes" if a refusal names a limit of them. Empty: of tokens."""
    found = _UNIT.search(message)
    return {"byte": "bytes", "char": "characters"}[found[1][:4]] if found else ""


def _told(message: str, sent: str, *, prefix: str) -> int:
    """Return how many characters of ``sent`` fit according to a refusal, or zero."""
    reason = _NO_AMOUNT.sub("", message)
    amounts = {int(amount.replace(",", "")) for amount in _AMOUNT.findall(reason)}
    if len(amounts) > 2:
        both = [_LIMIT.search(reason), _GIVEN.search(reason)]
        amounts = {int(found[1]) for found in both if found}
    if not amounts or len(amounts) > 2:
        return 0
    limit = min(amounts)
    unit = unit_of(reason)
    if unit == "characters":
        return limit - len(prefix)
    given = max(amounts)
    if len(amounts) == 1:
        # If the number of tokens is not told, estimate it: of four English letters, or one Chinese.
        in_bytes = len(sent.encode())
        given = in_bytes if unit == "bytes" else len(sent) // 4 + (in_bytes - len(sent)) // 2
    return int(len(sent) * 0.95 * limit / given) if limit < given else 0
