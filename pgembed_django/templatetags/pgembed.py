"""Template tags for the overview on the app's index page, on every admin site."""

from __future__ import annotations

from typing import Any

from django import template
from django.http import HttpRequest

from pgembed_django.admin import acts, overview

register = template.Library()


@register.simple_tag(takes_context=True)
def pgembed_overview(context: dict[str, Any]) -> dict[str, Any] | None:
    """Return the overview's data. None: the viewer has no permission to view jobs."""
    request: HttpRequest = context["request"]
    return overview.of(request)


@register.filter
def pgembed_number(number: int) -> str:
    """Return a number with a comma after each thousand, such as "20,000"."""
    return acts.numbered(number)


@register.filter
def pgembed_duration(seconds: float | None) -> str:
    """Return a duration in words, such as "12 min"."""
    return overview.duration(seconds)
