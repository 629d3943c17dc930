"""Search the tables, and turn each row into a result for the template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blog.models import Article
from django.core.exceptions import ImproperlyConfigured
from django.db.models import QuerySet
from django.urls import reverse
from library.models import Entry

from pgembed_django import search, similar_to
from pgembed_django.exceptions import PgembedError
from pgembed_django.retrieval import Hit as Found
from website.asked import Asked
from website.snippets import breakable, snippet
from website.why import Way, ways

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
    why: tuple[Way, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The results, with a sentence about them or about why the search failed."""

    hits: tuple[Hit, ...] = ()
    note: str = ""
    problem: str = ""

    @property
    def best(self) -> float:
        """What a full bar means: 1, or the best score if these are no shares."""
        return max([1.0, *(hit.score for hit in self.hits)])


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
        return tuple(map(_article, similar_to(article, limit=3).hits))
    except PgembedError:
        return ()


def _in_library(asked: Asked) -> Outcome:
    entries = Entry.objects.all()
    if asked.module:
        entries = entries.filter(module=asked.module)
    if not asked.private:
        entries = entries.filter(is_public=True)
    found = search(entries, asked.text, limit=MOST_ENTRIES, **_options(asked))
    return Outcome(hits=tuple(_entry(hit, asked.text) for hit in found.hits), note=found.note)


def _in_articles(asked: Asked) -> Outcome:
    found = search(published(), asked.text, limit=MOST_ARTICLES, **_options(asked))
    return Outcome(hits=tuple(_article(hit, asked.text) for hit in found.hits), note=found.note)


def _options(asked: Asked) -> Any:
    return {
        "mode": asked.mode,
        "language": asked.language or None,
        "min_similarity": asked.min_similarity,
        "rerank": asked.reranker or None,
    }


def _entry(found: Found[Entry], query: str) -> Hit:
    entry = found.instance
    whole = entry.embedding_text()
    return Hit(
        title=breakable(entry.name),
        url=entry.get_absolute_url(),
        score=found.score,
        similarity=found.similarity,
        labels=(entry.kind,),
        signature=entry.signature,
        is_code=True,
        snippet=snippet(found.passage, query, whole=whole, leave_out=(entry.heading,)),
        why=ways(found.matched_by, query, whole=whole, shown=(found.start, found.end)),
    )


def _article(found: Found[Article], query: str = "") -> Hit:
    article = found.instance
    whole = "\n\n".join([article.title, article.author, article.contents, article.category])
    headings = (article.title, article.author, article.category)
    return Hit(
        title=article.title,
        url=reverse("website:article", args=[article.pk]),
        score=found.score,
        similarity=found.similarity,
        labels=(article.category, article.author),
        snippet=snippet(found.passage, query, whole=whole, leave_out=headings),
        why=ways(found.matched_by, query, whole=whole, shown=(found.start, found.end)),
    )
