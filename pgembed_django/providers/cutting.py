"""Prepare a text for sending: well-formed, and cut to the model's context. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

MAX_CUTS: Final = 12
"""How many times to cut one text before it is refused."""

_LIMIT: Final = re.compile(r"(?:length is|less than|size)\D{0,3}(\d{2,})", re.IGNORECASE)
_GIVEN: Final = re.compile(r"(?:requested|given|input)\D{0,3}(\d{2,})", re.IGNORECASE)
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


def halves(text: str) -> tuple[str, str]:
    """Return the text in two parts, neither of them empty, cut between words if possible."""
    first = shorten(text, characters=max(1, len(text) * 4 // 7))
    rest = text[len(first) :]
    return first, rest.strip() or rest


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


def room(text: str, *, cuts: int, message: str, learnt: int | None) -> int:
    """Return how many characters of a refused text to try next.

    ``text`` is the whole text, ``cuts`` how many times it was cut before. The first try follows
    the limit in the server's message, or else ``learnt``, the length of another text that fit.
    """
    if cuts == 0:
        limit, given = _limits(message)
        if 0 < limit < given:
            return max(1, int(len(text) * 0.95 * limit / given))
        if learnt is not None and learnt < len(text):
            return learnt
    if cuts < len(_SHARES):
        return max(1, int(len(text) * _SHARES[cuts]))
    return max(1, int(len(text) * _SHARES[-1] / 2 ** (cuts - len(_SHARES) + 1)))


def _limits(message: str) -> tuple[int, int]:
    """Return the token limit and the tokens given if a refusal states both, or else zeros.

    "maximum context length is 512 tokens, however you requested 812 tokens": (512, 812).
    """
    limit, given = _LIMIT.search(message), _GIVEN.search(message)
    return (int(limit[1]), int(given[1])) if limit and given else (0, 0)
