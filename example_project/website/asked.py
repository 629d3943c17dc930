"""Parse what a visitor asked for from the page's URL, which may contain anything. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args
from urllib.parse import urlencode

LONGEST_QUERY = 500

Shelf: TypeAlias = Literal["library", "articles"]
Mode: TypeAlias = Literal["hybrid", "semantic", "lexical"]

MODES: dict[Mode, str] = {
    "hybrid": "words and meaning",
    "semantic": "meaning",
    "lexical": "words",
}
LANGUAGES = {
    "english": "English",
    "french": "French",
    "german": "German",
    "spanish": "Spanish",
    "simple": "as written",
}
"""Full-text configurations for the words of a query, with what the page calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a visitor asked for. ``notes`` tell the visitor what could not be done as asked."""

    text: str = ""
    shelf: Shelf = "library"
    module: str = ""
    private: bool = False
    mode: Mode = "hybrid"
    language: str = ""
    min_similarity: float | None = None
    reranker: str = ""
    notes: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, str]:
        """The options that were chosen, as the URL has them."""
        least = self.min_similarity
        options = {
            "mode": "" if self.mode == "hybrid" else self.mode,
            "language": self.language,
            "min_similarity": "" if least is None else str(least),
            "reranker": self.reranker,
        }
        return {name: value for name, value in options.items() if value}

    def link(self, **changes: str) -> str:
        """Return the URL of the page for the same question with ``changes``."""
        asked = {"q": self.text, "in": self.shelf, **self.options, **changes}
        return "?" + urlencode({key: value for key, value in asked.items() if value})

    @property
    def tabs(self) -> list[tuple[str, str, bool]]:
        """Return (title, URL, whether it is open) of each shelf."""
        titles = {"library": "Standard library", "articles": "Articles"}
        return [
            (titles[shelf], self.link(**{"in": shelf}), shelf == self.shelf)
            for shelf in get_args(Shelf)
        ]


def read(
    parameters: Mapping[str, str], modules: Collection[str], rerankers: Collection[str] = ()
) -> Asked:
    """Return what the URL asks for. ``modules``: all modules that exist."""
    notes = []

    def chosen(name: str, known: Collection[str], instead: str, *, default: str = "") -> str:
        value = parameters.get(name, "").strip()
        if value and value not in known:
            notes.append(f"There is no {name} {value[:80]!r} here, so {instead}.")
        return value if value in known else default

    text = " ".join(parameters.get("q", "").replace("\0", " ").split())
    if len(text) > LONGEST_QUERY:
        text = text[:LONGEST_QUERY].strip()
        notes.append(f"Only the first {LONGEST_QUERY} characters were searched for.")
    shelf = parameters.get("in", "library")
    module = chosen("module", modules, "all modules were searched")
    mode = chosen("mode", MODES, "both words and meaning were searched for", default="hybrid")
    language = chosen("language", LANGUAGES, "the words were read as those of the texts")
    reranker = chosen("reranker", rerankers, "nothing was reranked")
    least = _number(parameters.get("min_similarity", "").strip(), notes)
    if least is not None and mode == "lexical":
        notes.append("A search by words alone compares no vectors, so no similarity was required.")
        least = None
    return Asked(
        text=text,
        shelf=cast("Shelf", shelf) if shelf in get_args(Shelf) else "library",
        module=module,
        private=parameters.get("private") == "1",
        mode=cast("Mode", mode),
        language=language,
        min_similarity=least,
        reranker=reranker,
        notes=tuple(notes),
    )


def _number(text: str, notes: list[str]) -> float | None:
    """Return the least similarity, or None if there is none or, with a note, if it is no cosine."""
    if not text:
        return None
    with suppress(ValueError):
        least = float(text)
        if -1 <= least <= 1:
            return least
    notes.append(
        f"The least similarity is {text[:80]!r}, so none was required. Give a number from -1 to 1."
    )
    return None
