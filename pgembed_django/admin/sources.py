"""From a job to its source row's own admin page, for those who may view it."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from pgembed_django import specs
from pgembed_django.models import Job


def source_link(job: Job, *, request: HttpRequest, site: AdminSite) -> SafeString | None:
    """Return a link to the source row. None: no page, no permission, or no such spec here."""
    spec = specs.get(job.spec)
    if spec is None:
        return None
    # The row is not loaded: a list of fifty jobs is one query, and the text stays unseen.
    title = f"{spec.model._meta.verbose_name} {job.source_pk}"
    for model in (spec.model, spec.model._meta.concrete_model):
        url = model and _page(model, job.source_pk, request=request, site=site)
        if url:
            return format_html('<a href="{}">{}</a>', url, title)
    return None


def _page(
    model: type[Model], source_pk: str, *, request: HttpRequest, site: AdminSite
) -> str | None:
    if not site.is_registered(model):
        return None
    if not site.get_model_admin(model).has_view_permission(request):
        return None
    name = f"{site.name}:{model._meta.app_label}_{model._meta.model_name}_change"
    try:
        return reverse(name, args=[quote(source_pk)])
    except NoReverseMatch:
        return None
