"""Search for a few questions, and print the results."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator

from library.models import Entry
from website import hits

from pgembed_django import search

QUESTIONS = (
    "precise timer for measuring performance",
    "wait for a thread to finish",
    "compare two sequences of lines",
    "split a shell command into arguments",
)
ARTICLE_QUESTION = "jobs that run twice after a crash"
LIMIT = 4


def lines() -> Iterator[str]:
    """Yield the questions and their results, one line each, cut to the terminal's width."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    public = Entry.objects.filter(is_public=True)
    for question in QUESTIONS:
        yield f"\n  {question}"
        for entry in search(public, question, limit=LIMIT):
            passage = entry.passage.removeprefix(entry.heading)
            yield _line(entry.score, entry.name, passage, width)
    yield f"\n  {ARTICLE_QUESTION}   (articles)"
    for article in search(hits.published(), ARTICLE_QUESTION, limit=2):
        passage = article.passage.removeprefix(article.title).strip().removeprefix(article.author)
        yield _line(article.score, article.title, passage, width)


def _line(score: float, title: str, passage: str, width: int) -> str:
    start = f"    {score:.2f}  {title:<36}  "
    room = max(width - len(start), 24)
    return start + textwrap.shorten(passage, room, placeholder=" …")
