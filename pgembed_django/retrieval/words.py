"""What is looked for of a query's words. Pure: Postgres has made lexemes of them before."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_MATCHES = 20_000
"""How many passages are ranked by their words before common words are left out."""

# A quoted phrase, or a word that is not to be there: somebody knows what to ask for.
OPERATORS = re.compile(r'"[^"]*\w[^"]*"|(?:^|\s)-\w')


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A query as full text: which passages it finds, and what ranks and marks them.

    Both are tsqueries, and empty where there is nothing to look for.
    """

    finding: str
    ranking: str

    def __bool__(self) -> bool:
        return bool(self.finding)


def of(
    text: str,
    *,
    lexemes: Sequence[str],
    written: str,
    tree: str,
    common: Mapping[str, float],
    chunks: float,
) -> Words:
    """Return what a query looks for among about ``chunks`` chunks.

    ``written`` is what ``websearch_to_tsquery`` makes of the text, ``tree`` its ``querytree``.
    Passages with any of the words are found. Those with more of them, more often, rank
    higher. With operators, quotes or a minus sign, only what matches as written.
    """
    if tree in ("", "T"):  # nothing, or only what is not to be there
        return Words(finding="", ranking="")
    if OPERATORS.search(text):
        return Words(finding=written, ranking=written)
    telling = lexemes
    if chunks > MOST_MATCHES:
        telling = rarest(lexemes, common, most_matches=MOST_MATCHES, chunks=chunks)
    return Words(finding=any_of(telling), ranking=any_of(lexemes))


def rarest(
    words: Sequence[str], common: Mapping[str, float], *, most_matches: float, chunks: float
) -> list[str]:
    """Return the words that find something new for a bounded price: always the rarest one.

    ``common`` has the share of chunks that a common word is in, as the statistics tell.
    """
    ordered = sorted(words, key=lambda word: common.get(word, 0.0))
    telling = ordered[:1]
    matches = common.get(ordered[0], 0.0) * chunks if ordered else 0.0
    for word in ordered[1:]:
        matches += common.get(word, 0.0) * chunks
        if matches > most_matches:
            break
        telling.append(word)
    return telling


def any_of(words: Sequence[str]) -> str:
    """Return the tsquery, as text, of passages with any of these lexemes."""
    quoted = (word.replace("\\", "\\\\").replace("'", "''") for word in words)
    return " | ".join(f"'{word}'" for word in quoted)
