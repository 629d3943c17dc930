"""The search of the site."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from wagtail.models import Locale

from pgembed_django import search
from tests.packages.with_wagtail.models import BlogPage


def search_pages(request: HttpRequest) -> HttpResponse:
    query = request.GET.get("q", "")
    pages = BlogPage.objects.public().filter(locale=Locale.get_active())
    results = search(pages, query, limit=20)
    return render(request, "search.html", {"query": query, "results": results})
