"""Search the tables, and turn each row into a result for the template."""

from __future__ import annotations

from dataclasses import dataclass

from blog.models import Article
from django.core.exceptions import ImproperlyConfigured
from django.db.models import QuerySet
from django.urls import reverse
from library.models import Entry

from pgembed_django import search, similar_to
from pgembed_django.exceptions import PgembedError
from website.asked import Asked
from website.snippets import breakable, snippet

MOST_ENTRIES = 20
MOST_ARTICLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One result for the template. ``similarity`` is None if only the full-text search found it."""

    title: str
    url: str
    score: float
    similarity: float | None
    snippet: str
    labels: tuple[str, ...] = ()
    signature: str = ""
    is_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The results, with a sentence about them or about why the search failed."""

    hits: tuple[Hit, ...] = ()
    note: str = ""
    problem: str = ""


def published() -> QuerySet[Article]:
    return Article.objects.filter(published_time__isnull=False)


def find(asked: Asked) -> Outcome:
    """Search the chosen shelf. An empty text finds nothing."""
    if not asked.text:
        return Outcome()
    finder = _in_library if asked.shelf == "library" else _in_articles
    try:
        return finder(asked)
    except (PgembedError, ImproperlyConfigured) as error:
        return Outcome(problem=f"The search cannot be answered just now: {error}")


def related(article: Article) -> tuple[Hit, ...]:
    """Return similar articles, or none while the article is not embedded."""
    try:
        return tuple(map(_article, similar_to(article, limit=3)))
    except PgembedError:
        return ()


def _in_library(asked: Asked) -> Outcome:
    entries = Entry.objects.all()
    if asked.module:
        entries = entries.filter(module=asked.module)
    if not asked.private:
        entries = entries.filter(is_public=True)
    found = search(entries, asked.text, limit=MOST_ENTRIES)
    return Outcome(hits=tuple(_entry(entry, asked.text) for entry in found), note=found.note)


def _in_articles(asked: Asked) -> Outcome:
    found = search(published(), asked.text, limit=MOST_ARTICLES)
    return Outcome(hits=tuple(_article(article, asked.text) for article in found), note=found.note)


def _entry(entry: Entry, query: str) -> Hit:
    return Hit(
        title=breakable(entry.name),
        url=entry.get_absolute_url(),
        score=entry.score,
        similarity=entry.similarity,
        labels=(entry.kind,),
        signature=entry.signature,
        is_code=True,
        snippet=snippet(
            entry.passage, query, whole=entry.embedding_text(), leave_out=(entry.heading,)
        ),
    )


def _article(article: Article, query: str = "") -> Hit:
    whole = "\n\n".join([article.title, article.author, article.contents, article.category])
    headings = (article.title, article.author, article.category)
    return Hit(
        title=article.title,
        url=reverse("website:article", args=[article.pk]),
        score=article.score,
        similarity=article.similarity,
        labels=(article.category, article.author),
        snippet=snippet(article.passage, query, whole=whole, leave_out=headings),
    )
