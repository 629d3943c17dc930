"""BM25 by a library for research, bm25s, with Snowball's stemmer: all texts in memory, no database.

Its defaults: Lucene's variant, k1 = 1.5, b = 0.75, its own English stop words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Bm25s:
    """Ranks texts, given by name."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        import bm25s
        import Stemmer

        self._names = list(texts)
        self._library: Any = bm25s
        self._stemmer = Stemmer.Stemmer("english")
        self._index = bm25s.BM25()
        self._index.index(self._tokens(list(texts.values())), show_progress=False)

    def rank(self, query: str, *, rows: int) -> dict[str, float]:
        """Return the best texts for a query with their scores, best first."""
        tokens = self._tokens([query])
        if not tokens.vocab:
            return {}
        most = min(rows, len(self._names))
        places, scores = self._index.retrieve(tokens, k=most, show_progress=False)
        return {
            self._names[place]: float(score)
            for place, score in zip(places[0], scores[0], strict=True)
            if score > 0
        }

    def _tokens(self, texts: Sequence[str]) -> Any:
        return self._library.tokenize(
            list(texts), stopwords="en", stemmer=self._stemmer, show_progress=False
        )
