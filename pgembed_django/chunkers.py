"""Cut a text into chunks. Pure: no database, no network, no clock."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from pgembed_django.cutter import Cutter
from pgembed_django.text import Count, counted, digest, trim

__all__ = ["Chunk", "Chunker"]

VERSION = 1
"""Increase it with every change to what ``split`` returns. This makes all rows stale."""

TOKEN = re.compile(
    r"""
      [A-Za-z\u00c0-\u024f]{1,4}        # Latin letters
    | [0-9]{1,2}
    | [\u0250-\u167f\u1681-\u1fff]{1,2} # the other alphabets
    | \s\s{1,16}                        # a single space is free: it belongs to its word
    | \S                                # ideographs, syllables, punctuation, symbols
    """,
    re.VERBOSE,
)


def estimate_tokens(text: str) -> int:
    """Estimate how many tokens a model makes of a text, without its vocabulary.

    One token is four Latin letters, two digits, two letters of another alphabet, any other
    character, or white space beyond a single space. Compared with a vocabulary of 32,000 tokens,
    the estimate is 1.0 to 1.3 times as many for English prose, 1.1 for code, 0.8 for German. A
    vocabulary that hardly knows a language needs up to twice the estimate: choose a smaller size
    for it, or give a ``count``. Part of a text never counts more than the whole.
    """
    return len(TOKEN.findall(text))


class Chunk(NamedTuple):
    """A piece of a whole text: ``text == whole[start:end]``, with its SHA-256 digest."""

    position: int
    start: int
    end: int
    text: str
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunker:
    """Cuts texts into chunks of at most ``size``. Neighbours share at most ``overlap``.

    Both are counted in ``unit``. A model's context is measured in tokens. One token is about
    four English letters, but less than one ideograph, so a size in characters that suits one
    language is too long or too short for another. So the default unit is estimated tokens, and
    the default size 400, for the usual context of 512.

    ``count`` replaces the estimate. It is a function defined in a module, or its dotted path,
    that counts a text's tokens exactly, for instance with the model's own tokenizer.
    """

    size: int = 400
    overlap: int = 40
    unit: Literal["tokens", "characters"] = "tokens"
    count: Count | str | None = None

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("overlap", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} is {value!r}. Give a whole number of {least} or more.")
        if self.overlap >= self.size:
            raise ValueError(
                f"overlap is {self.overlap}, size is {self.size}. Make the overlap smaller "
                f"than the size, for instance {self.size // 10}."
            )
        if self.unit not in ("tokens", "characters"):
            raise ValueError(f"unit is {self.unit!r}. Choose 'tokens' or 'characters'.")
        if self.count is not None and self.unit != "tokens":
            raise ValueError(
                f"count is {self.count!r}, but the unit is {self.unit!r}. Leave one of them out."
            )
        if self.count is not None and not _has_lasting_name(self.count):
            raise ValueError(
                f"count is {self.count!r}, and no dotted path leads to it. "
                "Give a function defined in a module, or its dotted path."
            )

    @property
    def recipe(self) -> str:
        """Everything that decides how a text is cut. Equal recipes always cut a text the same way.

        Python's Unicode version is left out: it matters only for characters that are new in it,
        but would make every row stale with each new Python.
        """
        unit = self.unit if self.count is None else _dotted_path(self.count)
        kind = "chunker" if type(self) is Chunker else _dotted_path(type(self))
        return f"{kind} {VERSION}: size {self.size}, overlap {self.overlap}, {unit}"

    def split(self, text: str) -> list[Chunk]:
        """Return the chunks in order. Offsets refer to ``text``, which must be ``clean``.

        Every character other than white space is in a chunk. A chunk ends at the best break in
        its second half: the end of a paragraph, else of a line, a sentence, a word. A longer word
        is cut between graphemes. Only a single grapheme may exceed ``size``. Between equally good
        breaks, the text that follows them decides, not their distance from the start. So after an
        edit, the chunks further on soon end at the same breaks as before.
        """
        return [
            Chunk(position, start, end, text[start:end], digest(text[start:end]))
            for position, (start, end) in enumerate(self._spans(text))
        ]

    def _spans(self, text: str) -> Iterable[tuple[int, int]]:
        if self.count is None and len(text) <= self.size:  # no character counts as more than one
            start, end = trim(text, 0, len(text))
            return [(start, end)] if start < end else []
        count = self._counter()
        is_one_at_most = count in (len, estimate_tokens)
        return Cutter(text, count, self.size, self.overlap, is_one_at_most).spans()

    def _counter(self) -> Count:
        if self.count is None:
            return estimate_tokens if self.unit == "tokens" else len
        count = self.count if callable(self.count) else pkgutil.resolve_name(self.count)
        return count if count in (len, estimate_tokens) else partial(counted, count)


def _dotted_path(named: object) -> str:
    if isinstance(named, str):
        return named
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


def _has_lasting_name(count: Count | str) -> bool:
    """Return whether a dotted path leads to it: not so for lambdas, closures, bound methods."""
    path = _dotted_path(count)
    if isinstance(count, str):
        # Do not import it here: models are still being loaded, and its module may import them.
        return "." in path and all(part.isidentifier() for part in path.split("."))
    try:
        return bool(pkgutil.resolve_name(path) == count)
    except (AttributeError, ImportError, ValueError):
        return False
