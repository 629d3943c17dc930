"""Find a job's source row: its admin page, its size and, for those who may see it, its text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote
from django.contrib.auth import get_permission_codename
from django.core.exceptions import ValidationError
from django.db import DataError
from django.db.models import Manager, Model, QuerySet, TextField, Value
from django.db.models.functions import Cast, Coalesce, Length
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import ngettext

from pgembed_django import sources, specs
from pgembed_django.database import unions
from pgembed_django.models import Job, Space


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


def cut(model: type[Model], row: Model) -> str:
    """Return in words how many passages of a row the active space's model cut. Empty: none."""
    chunks = {"source_id": row.pk, "space__state": Space.State.ACTIVE, "was_cut": True}
    count = sum(
        spec.embedding_model._base_manager.using(row._state.db)
        .filter(space__spec=spec.key, **chunks)
        .count()
        for spec in specs.of(model)
    )
    said = ngettext(
        "%d passage did not fit the model as a whole.",
        "%d passages did not fit the model as a whole.",
        count,
    )
    return said % count if count else ""


def sizes(found: Iterable[Job], *, using: str) -> dict[tuple[str, str], int]:
    """Return the characters in the watched fields of the jobs' rows by unit, in one query.

    Leaves out rows of tables that are locked now.
    """
    queries = _sizes(found, using=using)
    return {(key, pk): size for key, pk, size in unions.read(queries, using=using)}


def size(job: Job, *, using: str) -> int | None:
    """Return the same for one job, or None. Waits for a locked table, as ``text`` does."""
    return next((size for rows in _sizes([job], using=using) for _, _, size in rows), None)


def _sizes(found: Iterable[Job], *, using: str) -> list[QuerySet[Any, tuple[str, str, int]]]:
    keys: dict[specs.Spec, list[Any]] = defaultdict(list)
    for job in found:
        spec = specs.get(job.spec)
        if spec is not None:
            try:
                keys[spec].append(spec.parse_pk(job.source_pk))
            except ValidationError:
                continue  # the key is of a type that the model's key no longer has
    return [
        _rows(spec, pks, using=using)
        .order_by()
        .values_list(
            Value(spec.key, output_field=TextField()),
            Cast("pk", TextField()),
            reduce(add, (_length(name) for name in spec.fields)),
        )
        for spec, pks in keys.items()
    ]


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


def _rows(spec: specs.Spec, pks: list[Any], *, using: str) -> QuerySet[Any]:
    """Return the rows that the base manager finds, as a plain queryset.

    A union matches columns by position, and django-modeltranslation's querysets reorder them.
    """
    shown = spec.model._base_manager.using(using).filter(pk__in=pks)
    if type(spec.model._base_manager) is Manager:
        return shown
    return QuerySet(spec.model, using=using).filter(pk__in=shown.order_by().values("pk"))


def _length(name: str) -> Any:
    return Coalesce(Length(Cast(name, TextField())), 0)


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
