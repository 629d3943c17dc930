"""The search page and the page of one article."""

from __future__ import annotations

from blog.models import ArticleEmbedding
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe
from library.models import Entry, EntryEmbedding

from website import asked, freshness, hits

EXAMPLES = {
    "library": (
        "precise timer for measuring performance",
        "wait for a thread to finish",
        "compare two sequences of lines",
        "split a shell command into arguments",
        "parse an ISO 8601 date",
    ),
    "articles": (
        "why does the database ignore my index",
        "jobs that run twice after a crash",
        "what to do about slugs",
        "bread that rises overnight",
    ),
}


@require_safe
def search_page(request: HttpRequest) -> HttpResponse:
    """Show the results of a search. A failed search is explained on the page, without traceback."""
    modules = list(Entry.objects.order_by("module").values_list("module", flat=True).distinct())
    rerankers = list(getattr(settings, "PGEMBED_RERANKERS", {}))
    question = asked.read(request.GET, modules, rerankers)
    outcome = hits.find(question)
    context = {
        "asked": question,
        "examples": [(text, question.link(q=text)) for text in EXAMPLES[question.shelf]],
        "freshness": _freshness(question.shelf),
        "languages": asked.LANGUAGES,
        "modes": asked.MODES,
        "modules": modules,
        "outcome": outcome,
        "rerankers": rerankers[:1],
    }
    return render(request, "website/search.html", context, status=503 if outcome.problem else 200)


def _freshness(shelf: asked.Shelf) -> freshness.Freshness:
    if shelf == "articles":
        return freshness.of(hits.published(), ArticleEmbedding)
    return freshness.of(Entry.objects.all(), EntryEmbedding)


@require_safe
def article_page(request: HttpRequest, pk: int) -> HttpResponse:
    """Show a published article, with similar ones."""
    article = get_object_or_404(hits.published(), pk=pk)
    context = {"article": article, "related": hits.related(article)}
    return render(request, "website/article.html", context)
