"""Find a job's source row: its admin page, its size and, for those who may see it, its text."""

from __future__ import annotations

from functools import reduce
from operator import add

from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote
from django.contrib.auth import get_permission_codename
from django.core.exceptions import ValidationError
from django.db import DataError
from django.db.models import Model, TextField
from django.db.models.functions import Cast, Coalesce, Length
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from pgembed_django import sources, specs
from pgembed_django.models import Job


def source_link(job: Job, *, request: HttpRequest, site: AdminSite) -> SafeString | None:
    """Return a link to the row's admin page. None: no page, no permission or no such spec."""
    spec = specs.get(job.spec)
    if spec is None:
        return None
    # The row is not loaded: a list of fifty jobs takes one query, and no text is shown.
    title = f"{spec.model._meta.verbose_name} {job.source_pk}"
    for model in _models(spec):
        url = _page(model, job.source_pk, request=request, site=site)
        if url:
            return format_html('<a href="{}">{}</a>', url, title)
    return None


def size(job: Job, *, using: str) -> int | None:
    """Return the characters in the watched fields of the job's row, or None if there is none."""
    spec = specs.get(job.spec)
    if spec is None:
        return None
    try:
        row = spec.model._base_manager.using(using).filter(pk=spec.parse_pk(job.source_pk))
    except ValidationError:
        return None  # the key is of a type that the model's key no longer has
    lengths = (Coalesce(Length(Cast(name, TextField())), 0) for name in spec.fields)
    found: int | None = row.order_by().values_list(reduce(add, lengths), flat=True).first()
    return found


def text(job: Job, *, request: HttpRequest, site: AdminSite, using: str) -> str | None:
    """Return the row's text as it would be embedded. None: the viewer may not see the row."""
    spec = specs.get(job.spec)
    if spec is None or not any(
        _may_view(model, job.source_pk, request=request, site=site) for model in _models(spec)
    ):
        return None
    try:
        loaded = sources.load(spec, [job.source_pk], using=using)
    except DataError:
        return ""  # not a valid key of this table: there is no row
    return loaded.texts.get(job.source_pk) or loaded.errors.get(job.source_pk, "")


def _models(spec: specs.Spec) -> tuple[type[Model], ...]:
    concrete = spec.model._meta.concrete_model
    return (spec.model, concrete) if concrete not in (None, spec.model) else (spec.model,)


def _may_view(model: type[Model], source_pk: str, *, request: HttpRequest, site: AdminSite) -> bool:
    """Return whether the viewer may see the row: ask its admin page, or else the permissions."""
    if site.is_registered(model):
        model_admin = site.get_model_admin(model)
        row = model_admin.get_object(request, source_pk)
        return row is not None and model_admin.has_view_permission(request, row)
    actions = ("view", "change")
    codenames = (get_permission_codename(action, model._meta) for action in actions)
    return any(request.user.has_perm(f"{model._meta.app_label}.{name}") for name in codenames)


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
