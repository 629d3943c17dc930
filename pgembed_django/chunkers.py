"""Cut a text into chunks. Pure: no database, no network, no clock."""

from __future__ import annotations

import pkgutil
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Literal, NamedTuple

from pgembed_django.text import Count, counted, digest, is_boundary, reach, reach_back, trim

VERSION = 1
"""Raise it with every change of what ``split`` returns: rows become stale by it."""

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
BREAK = re.compile(r"\s+|(?<=[。！？｡])(?![\s。！？｡”’」』）])")  # noqa: RUF001
SENTENCE_ENDS = frozenset(".!?…。！？｡؟۔।॥։።")  # noqa: RUF001
CLOSERS = "\"'”’»)]}」』）"  # noqa: RUF001
ANCHOR_CONTEXT = 32
ONE_BREAK_IN = 4


class Level(IntEnum):
    """How good a place for a cut is: the higher, the better."""

    WORD = 1
    SENTENCE = 2
    LINE = 3
    PARAGRAPH = 4


def estimate_tokens(text: str) -> int:
    """Return about as many tokens as a model would, without its vocabulary.

    Four Latin letters are a token, two digits, two letters of another alphabet, any
    other character, and white space beyond a single space. English prose comes out at
    1.0 to 1.3 times what a vocabulary of 32,000 makes of it, code at 1.1, German at 0.8;
    a vocabulary that hardly knows a language needs up to twice the estimate, so give a
    smaller size there, or a ``count``. Part of a text never counts more than the whole.
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
    """Cuts texts into chunks of at most ``size``, which share at most ``overlap``.

    Both are counted in ``unit``. A model's context is counted in tokens, and one token
    is about four letters of English, but not even one ideograph: a size in characters
    that suits one language is too long or too short for the next. So the default is
    estimated tokens, 400 of them, for the usual context of 512.

    ``count`` is a function of a module, or its dotted path, that counts a text exactly,
    for instance with the model's own tokenizer. It takes the place of the estimate.
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
        """All that decides how a given text is cut. Equal recipes cut alike, now and later.

        Python's Unicode version is left out: it only matters for characters that are new in
        it, but would make every row stale with each new Python.
        """
        unit = self.unit if self.count is None else _dotted_path(self.count)
        kind = "chunker" if type(self) is Chunker else _dotted_path(type(self))
        return f"{kind} {VERSION}: size {self.size}, overlap {self.overlap}, {unit}"

    def split(self, text: str) -> list[Chunk]:
        """Return the chunks in order. Offsets count in ``text``, which is ``clean`` already.

        Every character other than white space is in a chunk. A chunk ends at the best
        break in its second half: of a paragraph, else a line, a sentence, a word; a word
        longer than that is cut between graphemes, and only a single grapheme may exceed
        ``size``. Where there are several equal breaks, the text around them decides, not
        the distance from the beginning: behind an edit the old breaks are soon found again.
        """
        return [
            Chunk(position, start, end, text[start:end], digest(text[start:end]))
            for position, (start, end) in enumerate(self._spans(text))
        ]

    def _spans(self, text: str) -> Iterable[tuple[int, int]]:
        if self.count is None and len(text) <= self.size:  # no character counts more than one
            start, end = trim(text, 0, len(text))
            return [(start, end)] if start < end else []
        return _Cutter(text, self._counter(), self.size, self.overlap).spans()

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
    """Tell whether a dotted path leads to it: not to a lambda, a closure or a bound method."""
    path = _dotted_path(count)
    if isinstance(count, str):
        # Not imported here: models are still being loaded, and its module may import them.
        return "." in path and all(part.isidentifier() for part in path.split("."))
    try:
        return bool(pkgutil.resolve_name(path) == count)
    except (AttributeError, ImportError, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Cuts one text."""

    text: str
    count: Count
    size: int
    overlap: int

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of each chunk."""
        start, last = trim(self.text, 0, len(self.text))
        fresh = start  # the first character that is in no chunk yet
        while fresh < last:
            end = self._end(start, fresh, last)
            if end is None and start < fresh:
                start = fresh  # the overlap leaves no room for the next grapheme
                end = self._end(start, fresh, last)
            if end is None:
                end = next(self._graphemes(start, range(start + 1, last)), last)
            start, end = trim(self.text, start, end)
            yield start, end
            fresh, _ = trim(self.text, end, last)
            if fresh < last:
                start = self._overlap_start(start, end, fresh)

    def _end(self, start: int, fresh: int, last: int) -> int | None:
        """Return where the chunk from ``start`` ends, or None if ``fresh`` does not fit."""
        if last - start <= self.size and self.count in (len, estimate_tokens):
            return last  # no character counts more than one
        far = reach(self.text, self.size, start=start, count=self.count)
        if far >= last:
            return last
        floor = max(fresh + 1, (start + far) // 2)
        breaks = [
            found
            for found in _breaks(self.text, floor, far)
            if found.end <= far and is_boundary(self.text, found.end, start=start)
        ]
        if breaks:
            best = max(found.level for found in breaks)
            equals = [found.end for found in breaks if found.level == best]
            # Not among words: with so many anchors, the room would choose the last one again.
            return max(equals, key=lambda i: (best > Level.WORD and _is_anchor(self.text, i), i))
        return next(self._graphemes(start, range(far, fresh, -1)), None)

    def _overlap_start(self, start: int, end: int, fresh: int) -> int:
        """Return where the next chunk begins: at a sentence, else a word, else a grapheme."""
        if not self.overlap:
            return fresh
        nearest = reach_back(self.text, self.overlap, start=start + 1, end=end, count=self.count)
        breaks = [
            found
            for found in _breaks(self.text, nearest - 1, end - 1)
            if nearest <= found.start < end and is_boundary(self.text, found.start, start=start)
        ]
        if breaks:
            return max(breaks, key=lambda found: (found.level > Level.WORD, -found.start)).start
        return next(self._graphemes(start, range(nearest, end)), fresh)

    def _graphemes(self, start: int, indexes: range) -> Iterator[int]:
        return (index for index in indexes if is_boundary(self.text, index, start=start))


class _Break(NamedTuple):
    """A possible cut: one chunk may end at ``end``, and the next one begin at ``start``."""

    level: Level
    end: int
    start: int


def _breaks(text: str, low: int, high: int) -> Iterator[_Break]:
    """Yield the breaks that begin between ``low`` and ``high``."""
    # Two characters more, to recognize a paragraph's end that begins at ``high``.
    for match in BREAK.finditer(text, low, high + 2):
        lines = match.group().count("\n")
        if lines:
            level = Level.PARAGRAPH if lines > 1 else Level.LINE
        else:
            ending = text[max(match.start() - 3, 0) : match.start()].rstrip(CLOSERS)
            level = Level.SENTENCE if ending[-1:] in SENTENCE_ENDS else Level.WORD
        yield _Break(level, match.start(), match.end())


def _is_anchor(text: str, index: int) -> bool:
    """Tell whether the text after ``index`` makes this one of the breaks that attract cuts."""
    following = text[index : index + ANCHOR_CONTEXT].encode("utf-8", "surrogatepass")
    return zlib.crc32(following) % ONE_BREAK_IN == 0
