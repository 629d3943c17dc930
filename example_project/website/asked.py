"""Parse what a visitor asked for from the page's URL, which may contain anything. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args
from urllib.parse import urlencode

LONGEST_QUERY = 500

Shelf: TypeAlias = Literal["library", "articles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a visitor asked for. ``notes`` tell the visitor what could not be done as asked."""

    text: str = ""
    shelf: Shelf = "library"
    module: str = ""
    private: bool = False
    notes: tuple[str, ...] = ()

    def link(self, **changes: str) -> str:
        """Return the URL of the page for the same question with ``changes``."""
        asked = {"q": self.text, "in": self.shelf, **changes}
        return "?" + urlencode({key: value for key, value in asked.items() if value})

    @property
    def tabs(self) -> list[tuple[str, str, bool]]:
        """Return (title, URL, whether it is open) of each shelf."""
        titles = {"library": "Standard library", "articles": "Articles"}
        return [
            (titles[shelf], self.link(**{"in": shelf}), shelf == self.shelf)
            for shelf in get_args(Shelf)
        ]


def read(parameters: Mapping[str, str], modules: Collection[str]) -> Asked:
    """Return what the URL asks for. ``modules``: all modules that exist."""
    notes = []
    text = " ".join(parameters.get("q", "").replace("\0", " ").split())
    if len(text) > LONGEST_QUERY:
        text = text[:LONGEST_QUERY].strip()
        notes.append(f"Only the first {LONGEST_QUERY} characters were searched for.")
    module = parameters.get("module", "").strip()
    if module and module not in modules:
        notes.append(f"There is no module {module[:80]!r} here, so all modules were searched.")
        module = ""
    shelf = parameters.get("in", "library")
    return Asked(
        text=text,
        shelf=cast("Shelf", shelf) if shelf in get_args(Shelf) else "library",
        module=module,
        private=parameters.get("private") == "1",
        notes=tuple(notes),
    )
