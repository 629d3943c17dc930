"""Choose which words of a query to search for. Pure: gets the lexemes that Postgres made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_MATCHES = 20_000
"""If a query's words match more passages than this, its most common words are left out."""

MOST_WORDS = 32
"""A query of more words is a pasted text: only its rarest words find, and it has no operators.

Each word costs time for each passage that any of them matches.
"""

# A quoted phrase or an excluded word: a query with either is taken as written.
OPERATORS = re.compile(r'"[^"]*\w[^"]*"|(?:^|\s)-\w')

# websearch_to_tsquery reads every dash before a word, however far before it, as a NOT, and fails
# if more than 32 of them are nested. A dash that excludes nothing is a rule, a bullet or an arrow.
IDLE_DASHES = re.compile(r'(?<!\w)(?:-{2,}|-(?![\w"]))')

# A lexeme of more than 2046 bytes is an error in a tsquery. In lower case, some letters are longer.
LONGEST_WORD = re.compile(r"\S{500}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A full-text query: ``finding`` selects passages, ``ranking`` ranks and marks them.

    Both are tsqueries as text, and empty if there is nothing to search for.
    """

    finding: str
    ranking: str

    def __bool__(self) -> bool:
        return bool(self.finding)


def prepared(text: str) -> str:
    """Return a query's text as websearch_to_tsquery takes it: no text makes it fail."""
    return LONGEST_WORD.sub(r"\g<0> ", IDLE_DASHES.sub(" ", text))


def of(
    text: str,
    *,
    lexemes: Sequence[str],
    written: str,
    tree: str,
    common: Mapping[str, float],
    chunks: float,
) -> Words:
    """Return the tsqueries of a query in a table of about ``chunks`` chunks.

    ``written`` is what ``websearch_to_tsquery`` makes of the text, ``tree`` its ``querytree``,
    ``common`` as in ``rarest``. A passage with any of the words is found, and ranks higher the
    more of them it has, and the more often. A query with quotes or a minus sign finds only
    passages that match it as written, unless it has more than ``MOST_WORDS``.
    """
    if len(lexemes) <= MOST_WORDS and OPERATORS.search(text):
        if tree in ("", "T"):  # no words, or only excluded ones
            return Words(finding="", ranking="")
        return Words(finding=written, ranking=written)
    telling = lexemes
    if chunks > MOST_MATCHES:
        telling = rarest(lexemes, common, most_matches=MOST_MATCHES, chunks=chunks)
    return Words(finding=any_of(telling), ranking=any_of(lexemes))


def rarest(
    words: Sequence[str], common: Mapping[str, float], *, most_matches: float, chunks: float
) -> list[str]:
    """Return the rarest words that together match at most ``most_matches`` chunks, at least one.

    At most ``MOST_WORDS``, because it is unknown how many chunks an uncommon word matches.
    ``common`` has the share of chunks that contain each common word, from the statistics.
    """
    ordered = sorted(words, key=lambda word: common.get(word, 0.0))
    telling = ordered[:1]
    matches = common.get(ordered[0], 0.0) * chunks if ordered else 0.0
    for word in ordered[1:MOST_WORDS]:
        matches += common.get(word, 0.0) * chunks
        if matches > most_matches:
            break
        telling.append(word)
    return telling


def any_of(words: Sequence[str]) -> str:
    """Return a tsquery, as text, that matches passages with any of these lexemes."""
    quoted = (word.replace("\\", "\\\\").replace("'", "''") for word in words)
    return " | ".join(f"'{word}'" for word in quoted)
