"""The job list with its filters, and the page of one job with its history. Edits nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth import get_permission_codename
from django.db import DataError
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy

from pgembed_django import sources
from pgembed_django.admin.actions import ACTIONS, for_list, reembed_rows
from pgembed_django.admin.triage import (
    LinkedFilter,
    SignatureFilter,
    StatusFilter,
    TriageAdmin,
    WorkerFilter,
)
from pgembed_django.declaration import specs
from pgembed_django.models import Job

TEXT_CHARACTERS = 500


class SpecFilter(LinkedFilter):
    """By spec: the declared ones, and the one that is set."""

    title = gettext_lazy("spec")
    parameter_name = "spec"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, Any]]:
        """Return the specs."""
        linked = super().lookups(request, model_admin)
        return list(dict([(spec.key, spec.key) for spec in specs.all()] + [*linked]).items())


class JobAdmin(TriageAdmin[Job]):
    """Lists jobs, newest first. Failures are ordered by when they failed."""

    verbs = ACTIONS
    actions = [for_list(name, action) for name, action in ACTIONS.items()]
    # A screen has room for about four columns.
    list_display = (
        "__str__",
        "error",
        "state",
        "finished_at",
        "attempts",
        "crashes",
        "source_row",
        "worker_id",
        "created_at",
        "kind",
    )
    list_filter = (StatusFilter, SpecFilter, SignatureFilter, WorkerFilter)
    search_fields = ("source_pk",)
    search_help_text = gettext_lazy(
        "A row's key, a spec, or both: blog.ArticleEmbedding 17. At most 10,000 jobs are counted "
        "and listed."
    )
    fieldsets: ClassVar[Any] = (
        (None, {"fields": (("state", "source_row", "kind"), "full_error")}),
        (
            gettext_lazy("Attempts"),
            {
                "fields": (
                    ("attempts", "crashes", "outages", "claims"),
                    ("parkings", "items_done", "items_total"),
                )
            },
        ),
        (
            gettext_lazy("Times"),
            {
                "classes": ["collapse"],
                "fields": (("created_at", "started_at", "finished_at"), ("settled_at", "run_at")),
            },
        ),
        (
            gettext_lazy("Queue"),
            {"classes": ["collapse"], "fields": (("priority", "worker_id", "lease_expires_at"),)},
        ),
    )

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of Django's pages, and of our own."""
        return [
            path("rows/", self.wrapped(reembed_rows), name="pgembed_job_rows"),
            *super().get_urls(),
        ]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Find units by their exact spec, key or both, so that an index can be used."""
        if term := search_term.strip():
            spec, _space, source_pk = term.partition(" ")
            unit = Q(spec=spec, source_pk=source_pk.strip())
            queryset = queryset.filter(unit | Q(source_pk=term) | Q(spec=term))
        return queryset, False

    def unit_of(self, row: Job) -> tuple[str, str]:
        """Return the job's spec and source key."""
        return row.spec, row.source_pk

    def detail(self, request: HttpRequest, row: Job) -> dict[str, Any]:
        """Return the job's text, if the viewer may see its row."""
        using = self.get_queryset(request).db
        text = _text(row, using=using) if self._may_see_row(request, row) else None
        return {"text": text, "text_beginning": Truncator(text or "").chars(TEXT_CHARACTERS)}

    def _may_see_row(self, request: HttpRequest, job: Job) -> bool:
        """Return whether the viewer may see the row: by its admin page, or else by permissions."""
        for model in _models(job):
            if self.admin_site.is_registered(model):
                page = self.admin_site.get_model_admin(model)
                row = page.get_object(request, job.source_pk)
                return row is not None and page.has_view_permission(request, row)
        return any(
            request.user.has_perm(
                f"{model._meta.app_label}.{get_permission_codename(name, model._meta)}"
            )
            for model in _models(job)
            for name in ("view", "change")
        )

    @admin.display(description=gettext_lazy("source row"))
    def source_row(self, job: Job) -> SafeString | str:
        """A link to the row's page, which checks the permission, as for a foreign key.

        The row is not loaded: a list of fifty jobs takes one query, and no text is shown.
        """
        for model in _models(job):
            if self.admin_site.is_registered(model):
                name = f"{model._meta.app_label}_{model._meta.model_name}_change"
                try:
                    url = reverse(f"{self.admin_site.name}:{name}", args=[quote(job.source_pk)])
                except NoReverseMatch:  # an admin without that page, or an empty key
                    return "-"
                title = f"{model._meta.verbose_name} {job.source_pk}"
                return format_html('<a href="{}">{}</a>', url, title)
        return "-"


def _models(job: Job) -> Sequence[Any]:
    """Return the models of which the row's page may be: the spec's, or what it is a proxy of."""
    spec = specs.get(job.spec)
    return () if spec is None else (spec.model, spec.model._meta.concrete_model)


def _text(job: Job, *, using: str) -> str:
    """Return the row's text as it would be embedded, or why there is none."""
    spec = specs.get(job.spec)
    if spec is None:
        return ""
    try:
        loaded = sources.load(spec, [job.source_pk], using=using)
    except DataError:
        return ""  # not a valid key of this table: there is no row
    return loaded.texts.get(job.source_pk) or loaded.errors.get(job.source_pk, "")
