"""Choose where to cut a text. Pure.

Its results may only change together with ``chunkers.VERSION``.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from pgembed_django.graphemes import is_boundary
from pgembed_django.text import Count, reach, reach_back, trim

BREAK = re.compile(r"\s+|(?<=[。！？｡])(?![\s。！？｡”’」』）])")  # noqa: RUF001
SENTENCE_ENDS = frozenset(".!?…。！？｡؟۔।॥։።")  # noqa: RUF001
CLOSERS = "\"'”’»)]}」』）"  # noqa: RUF001
ANCHOR_CONTEXT = 32
ONE_BREAK_IN = 4


class Level(IntEnum):
    """How good a place for a cut is. Higher is better."""

    WORD = 1
    SENTENCE = 2
    LINE = 3
    PARAGRAPH = 4


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts one text."""

    text: str
    count: Count
    size: int
    overlap: int
    is_one_at_most: bool
    """Whether no character counts as more than one."""

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of each chunk."""
        start, last = trim(self.text, 0, len(self.text))
        fresh = start  # the first character that is not in any chunk yet
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
        if last - start <= self.size and self.is_one_at_most:
            return last
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
            # Prefer anchors, but not for words: they have so many that the last one would depend
            # on the distance from the start again.
            return max(equals, key=lambda i: (best > Level.WORD and _is_anchor(self.text, i), i))
        return next(self._graphemes(start, range(far, fresh, -1)), None)

    def _overlap_start(self, start: int, end: int, fresh: int) -> int:
        """Return where the next chunk begins: at the start of a sentence, a word, or a grapheme."""
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


class Break(NamedTuple):
    """A possible cut: one chunk may end at ``end``, and the next may begin at ``start``."""

    level: Level
    end: int
    start: int


def _breaks(text: str, low: int, high: int) -> Iterator[Break]:
    """Yield the breaks that begin between ``low`` and ``high``."""
    # Search two more characters, to recognize the end of a paragraph that begins at ``high``.
    for match in BREAK.finditer(text, low, high + 2):
        lines = match.group().count("\n")
        if lines:
            level = Level.PARAGRAPH if lines > 1 else Level.LINE
        else:
            ending = text[max(match.start() - 3, 0) : match.start()].rstrip(CLOSERS)
            level = Level.SENTENCE if ending[-1:] in SENTENCE_ENDS else Level.WORD
        yield Break(level, match.start(), match.end())


def _is_anchor(text: str, index: int) -> bool:
    """Return whether cuts prefer this break. The text after it decides, for one break in four."""
    following = text[index : index + ANCHOR_CONTEXT].encode("utf-8", "surrogatepass")
    return zlib.crc32(following) % ONE_BREAK_IN == 0
