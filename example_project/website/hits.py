"""Ask the tables, and make of each row what a result shows."""

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
    """One result, as the template shows it."""

    title: str
    url: str
    score: float
    snippet: str
    labels: tuple[str, ...] = ()
    signature: str = ""
    is_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was found, or a sentence about why nothing could be."""

    hits: tuple[Hit, ...] = ()
    problem: str = ""


def published() -> QuerySet[Article]:
    return Article.objects.filter(published_time__isnull=False)


def find(asked: Asked) -> Outcome:
    """Search the shelf that was asked for. An empty text finds nothing."""
    if not asked.text:
        return Outcome()
    finder = _in_library if asked.shelf == "library" else _in_articles
    try:
        return Outcome(hits=finder(asked))
    except (PgembedError, ImproperlyConfigured) as error:
        return Outcome(problem=f"The search cannot be answered just now: {error}")


def related(article: Article) -> tuple[Hit, ...]:
    """Return articles like this one. None while it is not embedded."""
    try:
        return tuple(map(_article, similar_to(article, limit=3)))
    except PgembedError:
        return ()


def _in_library(asked: Asked) -> tuple[Hit, ...]:
    entries = Entry.objects.all()
    if asked.module:
        entries = entries.filter(module=asked.module)
    if not asked.private:
        entries = entries.filter(is_public=True)
    return tuple(
        Hit(
            title=breakable(entry.name),
            url=entry.get_absolute_url(),
            score=entry.score,
            labels=(entry.kind,),
            signature=entry.signature,
            is_code=True,
            snippet=snippet(
                entry.passage,
                asked.text,
                whole=entry.embedding_text(),
                leave_out=(entry.heading,),
            ),
        )
        for entry in search(entries, asked.text, limit=MOST_ENTRIES)
    )


def _in_articles(asked: Asked) -> tuple[Hit, ...]:
    return tuple(
        _article(article, asked.text)
        for article in search(published(), asked.text, limit=MOST_ARTICLES)
    )


def _article(article: Article, query: str = "") -> Hit:
    whole = "\n\n".join([article.title, article.author, article.contents, article.category])
    headings = (article.title, article.author, article.category)
    return Hit(
        title=article.title,
        url=reverse("website:article", args=[article.pk]),
        score=article.score,
        labels=(article.category, article.author),
        snippet=snippet(article.passage, query, whole=whole, leave_out=headings),
    )
