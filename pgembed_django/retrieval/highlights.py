"""Show the part of a passage with most of the query's words, and mark them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from django.utils.safestring import SafeString, mark_safe

LENGTH = 320
"""About how many characters of a passage are shown."""

LEAD = LENGTH // 4
"""How far before the first marked word the shown part begins."""

SPACES = re.compile(r"\s+")

Marks = tuple[tuple[int, int], ...]


def marks_in(headline: str, *, passage: str, mark: str) -> Marks:
    """Return the start and end of each marked word in ``passage``.

    ``headline`` is the passage with ``mark`` before and after each of these words. Returns no
    marks if Postgres has changed anything else in it.
    """
    pieces = headline.split(mark)
    if "".join(pieces) != passage:
        return ()
    found = []
    place = 0
    for number, piece in enumerate(pieces):
        if number % 2:
            found.append((place, place + len(piece)))
        place += len(piece)
    return tuple(found)


def highlight(passage: str, marks: Marks) -> SafeString:
    """Return the ``LENGTH`` or so characters with the most marks, as HTML that is safe to show."""
    start, end = _window(passage, marks)
    inside = [mark for mark in marks if start <= mark[0] and mark[1] <= end]
    parts = ["… " if start else ""]
    seen = start
    for opens, closes in inside:
        parts += [_plain(passage[seen:opens]), f"<mark>{escape(passage[opens:closes])}</mark>"]
        seen = closes
    parts += [_plain(passage[seen:end]), " …" if end < len(passage) else ""]
    return mark_safe("".join(parts))  # noqa: S308 - every part is escaped


def _plain(text: str) -> str:
    return escape(SPACES.sub(" ", text))


def _window(passage: str, marks: Marks) -> tuple[int, int]:
    """Return where the shown part begins and ends, between words if possible."""
    if len(passage) <= LENGTH:
        return 0, len(passage)
    last = len(passage) - LENGTH
    starts = [0, *(min(max(opens - LEAD, 0), last) for opens, _ in marks)]
    start = max(starts, key=lambda start: _marked(passage, marks, start, start + LENGTH))
    end = start + LENGTH
    if start:
        start = max(passage.find(" ", start, start + LEAD) + 1, start)
    if end < len(passage):
        end = max(passage.rfind(" ", end - LEAD, end), start) or end
    return start, end if end > start else start + LENGTH


def _marked(passage: str, marks: Sequence[tuple[int, int]], start: int, end: int) -> int:
    """Count the different marked words between ``start`` and ``end``."""
    inside = {
        passage[opens:closes].lower() for opens, closes in marks if start <= opens and closes <= end
    }
    return len(inside)
