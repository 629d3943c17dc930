"""The tag that makes the app's index in the admin an overview, on every admin site."""

from __future__ import annotations

from typing import Any

from django import template
from django.http import HttpRequest

from pgembed_django.admin import overview

register = template.Library()


@register.simple_tag(takes_context=True)
def pgembed_overview(context: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the overview shows. None: the viewer may not see jobs."""
    request: HttpRequest = context["request"]
    return overview.of(request)


@register.filter
def pgembed_duration(seconds: float | None) -> str:
    """Return a length of time as a person says it."""
    return overview.duration(seconds)
