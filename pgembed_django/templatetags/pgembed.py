"""Template tags for the overview on the app's index page, on every admin site.

Django imports them with any template, and in ``check``, also in a project without the admin. So
the admin is imported when a tag is used.
"""

from __future__ import annotations

from typing import Any

from django import template

register = template.Library()


@register.simple_tag(takes_context=True)
def pgembed_overview(context: template.RequestContext) -> dict[str, Any] | None:
    """Return the overview's data. None: the viewer has no permission to view jobs."""
    from pgembed_django.admin import overview

    return overview.of(context.request)


@register.filter
def pgembed_duration(seconds: float | None) -> str:
    """Return a duration in words, such as "12 min"."""
    from pgembed_django.admin import overview

    return overview.duration(seconds)


@register.filter
def pgembed_per_minute(units_per_second: float) -> str:
    """Return units per minute as text."""
    from pgembed_django.admin import overview

    return overview.per_minute(units_per_second)
