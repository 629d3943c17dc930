"""Where a text may be cut without tearing apart what a reader sees as one character.

Pure, standard library only.
"""

from __future__ import annotations

import re
import unicodedata

FIRST_MARK = "\u0300"

# What UAX #29 needs beyond the general categories, up to Unicode 18.
LINKERS = "\u1cf5\u1cf6\U00011a3a"
PREPENDED = (
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd\U000110cd\U000111c2\U000111c3"
    "\U000113d1\U0001193f\U00011941\U00011a84-\U00011a89\U00011d46\U00011f02"
)
APPENDED = "\u0e33\u0eb3\u200c\u200d\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f"
JAMO_L = "\u1100-\u115f\ua960-\ua97c"
JAMO_VT = "\u1160-\u11ff\ud7b0-\ud7fb\U00016d63\U00016d67-\U00016d6a"
HANGUL = "\uac00-\ud7a3"
JOINED = re.compile(
    rf"""
      [{PREPENDED}{LINKERS}\u200d].       # \u200d joins emoji; here it joins any two characters
    | .[{APPENDED}]
    | [{JAMO_L}][{JAMO_L}{HANGUL}]
    | [{JAMO_L}{JAMO_VT}{HANGUL}][{JAMO_VT}]
    """,
    re.VERBOSE | re.DOTALL,
)
EXTENDER = re.compile(f"[{APPENDED}]")
BREAKING = frozenset({"Cc", "Zl", "Zp"})
MARKS = frozenset({"Mn", "Mc", "Me"})
VIRAMA = 9  # the canonical combining class of the signs that link Indic consonants


def is_boundary(text: str, index: int, *, start: int = 0) -> bool:
    """Return whether a cut at ``index`` keeps all extended grapheme clusters whole.

    ``start`` is a known boundary: nothing before it is read, so long runs of flags take linear
    time. This may refuse a legal cut, but never accepts an illegal one: next to characters that
    this Python's ``unicodedata`` does not know, it refuses every cut.

    Source: UAX #29, "Grapheme Cluster Boundary Rules".
    """
    if index <= start or index >= len(text):
        return True
    before, after = text[index - 1], text[index]
    if before < FIRST_MARK and after < FIRST_MARK:
        return (before, after) != ("\r", "\n")
    kind = unicodedata.category(after)
    if not BREAKING.isdisjoint((kind, unicodedata.category(before))):
        return True
    if kind in MARKS or _is_unknown(before) or _is_unknown(after):
        return False
    if JOINED.match(text, index - 1):
        return False
    if _is_regional(before) and _is_regional(after):
        return _regionals_before(text, index, start) % 2 == 0
    return not (kind == "Lo" and _is_linked(text, index, start))


def _is_unknown(char: str) -> bool:
    """Return whether a later Unicode version may make this character a mark or a prefix."""
    return (
        unicodedata.category(char) == "Cn"
        # Reserved for pictographs and for ideographs, which do not join with their neighbours.
        and not "\U0001f000" <= char <= "\U0001faff"
        and not "\U00020000" <= char <= "\U0003ffff"
    )


def _is_regional(char: str) -> bool:
    """Return whether this is a regional indicator: two of them make a flag."""
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _regionals_before(text: str, index: int, start: int) -> int:
    first = index
    while first > start and _is_regional(text[first - 1]):
        first -= 1
    return index - first


def _is_linked(text: str, index: int, start: int) -> bool:
    """Return whether a virama among the marks before ``index`` links the next consonant."""
    for position in range(index - 1, start - 1, -1):
        char = text[position]
        if unicodedata.combining(char) == VIRAMA or char in LINKERS or _is_unknown(char):
            return True
        if unicodedata.category(char) not in MARKS and not EXTENDER.match(char):
            return False
    return False
