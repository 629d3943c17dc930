"""Cut out the part of a passage with the most words of the query, and mark these. Pure."""

from __future__ import annotations

import re

from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

LENGTH = 320
MOST_WORDS = 24

# Words that are too common to be marked.
UNMARKED = """
    a an and are as at be by can do does for from how i if in into is it its my no not of on or
    so than that the their then this to was what when where which who why will with you your
"""
ENDINGS = re.compile(r"(?<=\w{3})(?:ings?|ed|es|s|ly|e)$")


def snippet(
    passage: str, query: str, *, whole: str = "", leave_out: tuple[str, ...] = ()
) -> SafeString:
    """Return safe HTML: about ``LENGTH`` characters of ``passage`` with marked words.

    ``whole`` is the text that contains the passage. ``leave_out`` are parts of its beginning and
    end that the page already shows.
    """
    text = passage.strip()
    is_beginning = not whole or whole.startswith(text)
    is_end = not whole or whole.endswith(text)
    for heading in leave_out:
        text = text.removeprefix(heading).removesuffix(f"\n\n{heading}").strip()
    text = " ".join(text.split())
    words = _pattern(query)
    start, end = _window(text, words)
    before = "" if start == 0 and is_beginning else "… "
    after = "" if end == len(text) and is_end else " …"
    return format_html("{}{}{}", before, _marked(text[start:end], words), after)


def breakable(name: str) -> SafeString:
    """Return a dotted name as safe HTML that a narrow page can break after the dots."""
    return format_html_join(mark_safe(".<wbr>"), "{}", ((part,) for part in name.split(".")))


def _pattern(query: str) -> re.Pattern[str] | None:
    """Return a pattern for the query's words, also in other forms: measure, measures, measuring."""
    words = dict.fromkeys(re.findall(r"\w+", query.lower()))
    stems = [
        re.escape(ENDINGS.sub("", word))
        for word in words
        if len(word) > 1 and word not in UNMARKED.split()
    ]
    if not stems:
        return None
    return re.compile(rf"\b(?:{'|'.join(stems[:MOST_WORDS])})\w{{0,4}}\b", re.IGNORECASE)


def _window(text: str, words: re.Pattern[str] | None) -> tuple[int, int]:
    """Return start and end, at word boundaries, of the part with the most marked words."""
    if len(text) <= LENGTH:
        return 0, len(text)
    places = [match.start() for match in words.finditer(text)] if words else []
    last = len(text) - LENGTH
    starts = [0, *(min(max(place - LENGTH // 4, 0), last) for place in places)]
    start = max(starts, key=lambda start: sum(start <= place < start + LENGTH for place in places))
    end = start + LENGTH
    if start:
        start = text.find(" ", start, end) + 1 or start
    if end < len(text):
        end = max(text.rfind(" ", start, end), start) or end
    return start, end if end > start else start + LENGTH


def _marked(text: str, words: re.Pattern[str] | None) -> SafeString:
    if words is None:
        return escape(text)
    parts = []
    seen = 0
    for match in words.finditer(text):
        parts += [escape(text[seen : match.start()]), format_html("<mark>{}</mark>", match.group())]
        seen = match.end()
    parts.append(escape(text[seen:]))
    return mark_safe("".join(parts))
