"""Cut texts into chunks, or to what a model takes. Pure: no database, no network, no clock.

A cut is searched backwards from the size, level by level: paragraph, line, sentence, word, and
grapheme. What lies before is not read, so the time is linear. ``benchmarks chunking`` measures it.
"""

from __future__ import annotations

import pkgutil
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import index as as_index
from typing import Final, Literal, NamedTuple, SupportsIndex

from pgembed_django.core.text import digest

__all__ = ["Chunk", "Chunker"]

VERSION: Final = 1
"""Increase it with every change to what ``split`` returns. This makes all rows stale."""

LATIN: Final = r"[A-Za-z\u00c0-\u024f]{1,4}+"
TOKEN: Final = rf"""
    [ ]?+{LATIN}                             # a single space is free: it belongs to its word
  | \s?+(?: {LATIN}
         | [0-9]{{1,2}}+
         | [\u0250-\u167f\u1681-\u1fff]{{1,2}}+  # the other alphabets
         | \S )                              # ideographs, syllables, punctuation, symbols
  | \s\s{{1,16}}+
"""
"""An estimated token: of English prose 1.0 to 1.3 times as many as with a vocabulary of 32,000, of
code 1.1, of German 0.8. A part never has more than the whole. Backwards, a text has as many."""

ENDS: Final = r".!?…。！？｡؟۔।॥։።"  # noqa: RUF001
CLOSERS: Final = r"\"'”’»)\]}」』）"  # noqa: RUF001
STOPS: Final = "。！？｡"  # noqa: RUF001
# Of a text read backwards. A match ends at the cut, and begins with what follows it.
WORD: Final = re.compile(r"\s+")
BREAKS: Final = (
    re.compile(r"\n[^\S\n]*+\n\s*+"),  # a paragraph
    re.compile(r"\n\s*+"),
    re.compile(rf"\s(?=[{CLOSERS}]{{0,2}}[{ENDS}])"),  # a sentence
    re.compile(rf"[^\s{STOPS}{CLOSERS}](?=[{CLOSERS}]{{0,2}}[{STOPS}])"),  # and without spaces
    WORD,
)
SENTENCE_START: Final = re.compile(
    rf"(?:\n|[{ENDS}][{CLOSERS}]{{0,2}}\s)\s*+"
    rf"|[{STOPS}][{CLOSERS}]{{0,2}}+(?![\s{STOPS}{CLOSERS}])"
)


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

    Both are counted in ``unit``. A size in characters that suits one language is too long or too
    short for another, so the default is 400 estimated tokens, for the usual context of 512. Such a
    token is four Latin letters, two digits, two letters of another alphabet, any other character,
    or white space beyond a single space. A vocabulary that hardly knows a language needs up to
    twice as many: choose a smaller size for it, or give a ``count``.

    ``count`` replaces the estimate. It is a function defined in a module, or its dotted path,
    that counts a text's tokens exactly, for instance with the model's own tokenizer.
    """

    size: int = 400
    overlap: int = 40
    unit: Literal["tokens", "characters"] = "tokens"
    count: Callable[[str], int] | str | None = None

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
        spans = list(self._spans(text))
        return [
            Chunk(position, start, end, text[start:end], digest(text[start:end]))
            for position, (start, end) in enumerate(spans)
        ]

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        last = _before_space(text, 0, len(text))
        start = fresh = _after_space(text, 0, last)
        while fresh < last:  # the first character that is not in any chunk yet
            far = start + self._fitting(text, start, last, self.size)
            end = last if far == last else last_break(text, far, start, fresh)
            if end is None and start < fresh:
                start = fresh  # the overlap leaves no room for the next grapheme
                continue
            end = end or _boundary(text, range(start + 1, last), start) or last
            end = _before_space(text, start, end)
            yield start, end
            fresh = _after_space(text, end, last)
            start = (fresh < last and self._overlap_start(text, start, end)) or fresh

    def _overlap_start(self, text: str, start: int, end: int) -> int | None:
        """Return where the next chunk begins: at a sentence, else a word, else a grapheme."""
        nearest = end - self._fitting(text, start + 1, end, self.overlap, from_end=True)
        for pattern, context in ((SENTENCE_START, 4), (WORD, 1)):
            for match in pattern.finditer(text, max(nearest - context, start), end):
                if nearest <= match.end() < end and is_boundary(text, match.end(), start=start):
                    return match.end()
        return _boundary(text, range(_after_space(text, nearest, end), end), start)

    def _fitting(
        self, text: str, start: int, end: int, limit: int, *, from_end: bool = False
    ) -> int:
        """Return how many characters of ``text[start:end]`` fit, from its start or its end."""
        if self.count is not None:
            count = self.count if callable(self.count) else pkgutil.resolve_name(self.count)
            return _counted(count, text, start, end, limit, from_end=from_end)
        if self.unit == "characters" or end - start <= limit:  # none is more than one token
            return min(limit, end - start)
        if from_end:
            text = text[max(start, end - 18 * limit) : end][::-1]  # no token has more characters
            start, end = 0, len(text)
        fitting = _tokens(limit).match(text, start, end)
        return fitting.end() - start if fitting else 0


@lru_cache(maxsize=64)
def _tokens(most: int) -> re.Pattern[str]:
    # One match takes a fifth of the time of a list of tokens. Possessive: it never goes back.
    return re.compile(f"(?:{TOKEN}){{0,{min(most, 2**31)}}}+", re.VERBOSE)


def _counted(
    count: Callable[[str], object], text: str, start: int, end: int, limit: int, *, from_end: bool
) -> int:
    """Call ``count`` as seldom as possible: guess an even density, and bisect every third time."""
    fits, exceeds = 0, end - start + 1
    guess, guesses = limit, 0
    while exceeds - fits > 1:
        guess = min(max(guess, fits + 1), exceeds - 1)
        found = count(text[end - guess : end] if from_end else text[start : start + guess])
        if not isinstance(found, SupportsIndex):
            name = getattr(count, "__qualname__", count)
            raise TypeError(f"{name}() returned {type(found).__name__}. Return a whole number.")
        fits, exceeds = (guess, exceeds) if as_index(found) <= limit else (fits, guess)
        guesses += 1
        even = guess * limit // max(as_index(found), 1)
        guess = even if guesses % 3 else min((fits + exceeds) // 2, 2 * fits)
    return fits


def _dotted_path(named: object) -> str:
    path = f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"
    return named if isinstance(named, str) else path


def _has_lasting_name(count: Callable[[str], int] | str) -> bool:
    """Return whether a dotted path leads to it: not so for lambdas, closures, bound methods."""
    path = _dotted_path(count)
    if isinstance(count, str):
        # Do not import it here: models are still being loaded, and its module may import them.
        return "." in path and all(part.isidentifier() for part in path.split("."))
    try:
        return bool(pkgutil.resolve_name(path) == count)
    except (AttributeError, ImportError, ValueError):
        return False


def last_break(
    text: str, far: int, start: int = 0, fresh: int = 0, levels: Iterable[re.Pattern[str]] = BREAKS
) -> int | None:
    """Return the best end in the second half of ``text[start:far]``, or None up to ``fresh``."""
    floor = max(fresh + 1, (start + far) // 2)
    high = min(far + 2, len(text))  # to recognize the end of a paragraph at ``far``
    backwards = text[floor:high][::-1]
    for level in levels:
        last = None
        for match in level.finditer(backwards):
            end = high - match.end()
            if end <= far and is_boundary(text, end, start=start):
                # The text after it decides which one to take, not the distance from the start. But
                # there are so many words that the last such one would depend on it again.
                following = text[end : end + 32].encode("utf-8", "surrogatepass")
                if level is WORD or zlib.crc32(following) % 4 == 0:
                    return end
                last = last or end
        if last is not None:
            return last
    return _boundary(text, range(far, fresh, -1), start)


def truncate(text: str, characters: int) -> str:
    """Return the start of a text, at most so many characters, ending after a word.

    If that would drop more than half of them, the last word is cut, between graphemes.
    """
    if len(text) <= characters:
        return text
    return text[: last_break(text, characters, levels=[WORD]) or characters]


class Truncation:
    """One text on its way to a model: ``sent`` is as much of it as may fit."""

    MOST: Final = 12  # cuts before it is refused

    def __init__(self, text: str) -> None:
        # UTF-8 and tokenizers reject lone surrogates.
        self.sent = text.encode(errors="replace").decode()
        self.cuts = 0

    def again(self, told: int, learnt: int | None = None) -> bool:
        """Cut it shorter, and return whether to send it again.

        ``told``: how many characters fit, if not zero. ``learnt``: as many of another text did.
        """
        if self.cuts == self.MOST:
            return False
        room = len(self.sent) * 3 // 4 if self.cuts < 4 else len(self.sent) // 2
        if 0 < told < len(self.sent) and self.cuts < 4:
            room = told
        elif not self.cuts and learnt and learnt < len(self.sent):
            room = learnt
        self.sent = truncate(self.sent, max(1, room))
        self.cuts += 1
        return True


def _after_space(text: str, start: int, end: int) -> int:
    """Return where the white space at ``start`` ends, but keep a space with a combining mark."""
    space = WORD.match(text, start, end)
    return space.end() - (not is_boundary(text, space.end(), start=start)) if space else start


def _before_space(text: str, start: int, end: int) -> int:
    """Return where the white space before ``end`` begins."""
    tail = start + len(text[start:end].rstrip())
    return tail + (tail < end and not is_boundary(text, tail, start=start))


def _boundary(text: str, among: range, start: int) -> int | None:
    return next((index for index in among if is_boundary(text, index, start=start)), None)


# What UAX #29 needs beyond the general categories, up to Unicode 18.
LINKERS: Final = "\u1cf5\u1cf6\U00011a3a"
PREPENDED: Final = (
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd\U000110cd\U000111c2\U000111c3"
    "\U000113d1\U0001193f\U00011941\U00011a84-\U00011a89\U00011d46\U00011f02"
)
APPENDED: Final = "\u0e33\u0eb3\u200c\u200d\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f"
JAMO_L: Final = "\u1100-\u115f\ua960-\ua97c"
JAMO_VT: Final = "\u1160-\u11ff\ud7b0-\ud7fb\U00016d63\U00016d67-\U00016d6a"
HANGUL: Final = "\uac00-\ud7a3"
JOINED: Final = re.compile(
    rf"[{PREPENDED}{LINKERS}\u200d]."  # \u200d joins emoji; here it joins any two characters
    rf"|.[{APPENDED}]|[{JAMO_L}][{JAMO_L}{HANGUL}]|[{JAMO_L}{JAMO_VT}{HANGUL}][{JAMO_VT}]",
    re.DOTALL,
)
EXTENDER: Final = re.compile(f"[{APPENDED}]")
CONTROLS: Final = ("Cc", "Zl", "Zp")
FLAG_LETTERS: Final = "".join(map(chr, range(0x1F1E6, 0x1F200)))


def is_boundary(text: str, index: int, *, start: int = 0) -> bool:
    """Return whether a cut at ``index`` keeps all extended grapheme clusters whole.

    ``start`` is a known boundary: nothing before it is read. This may refuse a legal cut, but never
    accepts an illegal one: next to characters that this Python's ``unicodedata`` does not know, it
    refuses every cut.

    Source: UAX #29, "Grapheme Cluster Boundary Rules".
    """
    if index <= start or index >= len(text):
        return True
    before, after = text[index - 1], text[index]
    if before < "\u0300" and after < "\u0300":  # the first mark
        return (before, after) != ("\r", "\n")
    kind = unicodedata.category(after)
    if kind in CONTROLS or unicodedata.category(before) in CONTROLS:
        return True
    if kind[0] == "M" or _is_unknown(before) or _is_unknown(after) or JOINED.match(text, index - 1):
        return False
    if before in FLAG_LETTERS and after in FLAG_LETTERS:
        known = text[start:index]
        return (len(known) - len(known.rstrip(FLAG_LETTERS))) % 2 == 0  # two letters are a flag
    return not (kind == "Lo" and _is_linked(text, index, start))


def _is_unknown(char: str) -> bool:
    """Return whether a later Unicode version may make this character a mark or a prefix."""
    # Of those for pictographs and for ideographs, none joins with its neighbours.
    return unicodedata.category(char) == "Cn" and not (
        "\U0001f000" <= char <= "\U0001faff" or "\U00020000" <= char <= "\U0003ffff"
    )


def _is_linked(text: str, index: int, start: int) -> bool:
    """Return whether a virama among the marks before ``index`` links the next consonant."""
    for char in map(text.__getitem__, range(index - 1, start - 1, -1)):
        if unicodedata.combining(char) == 9 or char in LINKERS or _is_unknown(char):
            return True
        if unicodedata.category(char)[0] != "M" and not EXTENDER.match(char):
            return False
    return False
