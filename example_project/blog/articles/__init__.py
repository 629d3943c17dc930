"""The articles of the example, one file each. A draft has no ``published`` line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One article, as read from its file."""

    title: str
    author: str
    category: str
    contents: str
    published_time: datetime | None


def written() -> Iterator[Written]:
    """Yield all articles, ordered by file name."""
    for file in sorted(FOLDER.glob("*.md")):
        yield read(file.read_text(encoding="utf-8"))


def read(text: str) -> Written:
    """Parse a file: ``key: value`` lines, an empty line, and the contents."""
    head, _, contents = text.partition("\n\n")
    values = dict(line.split(": ", 1) for line in head.splitlines())
    published = values.get("published")
    return Written(
        title=values["title"],
        author=values["author"],
        category=values["category"],
        contents=contents.strip(),
        published_time=datetime.fromisoformat(published).replace(tzinfo=UTC) if published else None,
    )
