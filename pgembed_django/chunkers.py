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

VERSION = 1
"""Increase this with every change of what ``split`` returns, so that all rows become stale."""

TOKEN = re.compile(
    r"""
      [A-Za-z\u00c0-\u024f]{1,4}        # Latin letters
    | [0-9]{1,2}
    | [\u0250-\u167f\u1681-\u1fff]{1,2} # the other alphabets
    | \s\s{1,16}                        # one space is free: it belongs to its word
    | \S                                # ideographs, syllables, punctuation, symbols
    """,
    re.VERBOSE,
)


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a model would count, without its vocabulary.

    One token is four Latin letters, two digits, two letters of another alphabet, any other
    character, or white space beyond a single space. Beside a vocabulary of 32,000, English prose
    comes out at 1.0 to 1.3 times as many tokens, code at 1.1, German at 0.8. A vocabulary that
    hardly knows a language needs up to twice the estimate: choose a smaller size for such texts,
    or a ``count``. A part of a text never counts more than the whole.
    """
    return len(TOKEN.findall(text))


class Chunk(NamedTuple):
    """A piece of a text: ``text == whole[start:end]``, with its digest."""

    position: int
    start: int
    end: int
    text: str
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunker:
    """Cuts texts into chunks of at most ``size``. Neighbours share at most ``overlap``.

    Both are counted in ``unit``. A model's context is counted in tokens, and a token is about four
    letters of English, but less than one ideograph: a size in characters that suits one language
    is too long or too short for the next. So the default is 400 estimated tokens, for the usual
    context of 512.

    ``count`` replaces the estimate: a function defined in a module, or its dotted path, that counts
    the tokens of a text, for instance with the model's own tokenizer.
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
        """A text with all that decides how texts are cut. Equal recipes cut alike, now and later.

        Python's Unicode version is not in it: it only matters for characters that are new in that
        version, but would make every row stale with each new Python.
        """
        unit = self.unit if self.count is None else _dotted_path(self.count)
        kind = "chunker" if type(self) is Chunker else _dotted_path(type(self))
        return f"{kind} {VERSION}: size {self.size}, overlap {self.overlap}, {unit}"

    def split(self, text: str) -> list[Chunk]:
        """Return the chunks in order. Offsets are into ``text``, which is ``clean`` already.

        Every character except white space is in a chunk. A chunk ends at the best break in its
        second half: the end of a paragraph, else of a line, a sentence or a word. A longer word is
        cut between graphemes, and only a single grapheme may exceed ``size``. The text around equal
        breaks decides between them, not their distance from the beginning, so that soon behind an
        edit the chunks end where they did before.
        """
        return [
            Chunk(position, start, end, text[start:end], digest(text[start:end]))
            for position, (start, end) in enumerate(self._spans(text))
        ]

    def _spans(self, text: str) -> Iterable[tuple[int, int]]:
        if self.count is None and len(text) <= self.size:  # no character counts more than one
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
    """Return whether a dotted path leads to it. None does to a lambda, closure or bound method."""
    path = _dotted_path(count)
    if isinstance(count, str):
        # Do not import it here: models are still being loaded, and its module may import them.
        return "." in path and all(part.isidentifier() for part in path.split("."))
    try:
        return bool(pkgutil.resolve_name(path) == count)
    except (AttributeError, ImportError, ValueError):
        return False
