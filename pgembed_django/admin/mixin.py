"""A mixin for users' own ModelAdmins: shows whether a row's vectors are fresh, and retries."""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Case, CharField, OuterRef, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Cast
from django.forms import Media
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from pgembed_django import spaces
from pgembed_django.admin.actions import ACTIONS, MAX_JOBS, level, log, summary, work_through
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Space
from pgembed_django.models.job import DISMISSED, OPEN_FAILURE, PENDING, RUNNING, UNSETTLED

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = object

STATES = {
    "fresh": gettext_lazy("fresh"),
    "pending": gettext_lazy("pending"),
    "failed": gettext_lazy("failed"),
    "dismissed": gettext_lazy("dismissed"),
    "missing": gettext_lazy("no vectors yet"),
    "outside": gettext_lazy("not embedded"),
}


class VectorsFilter(admin.SimpleListFilter):
    """Filters by the state of the rows' vectors."""

    title = gettext_lazy("vectors")
    parameter_name = "vectors"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the states."""
        return list(STATES.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows in the chosen state."""
        value = self.value()
        return queryset.filter(pgembed_state=value) if value in STATES else queryset


class VectorsMixin(ModelAdmin):
    """Shows the state of a source row's vectors on its page and in its list.

    Put it before ``ModelAdmin``. The list gets a column, a filter and the action *Retry*;
    the page of a row a line with a button.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.actions is not None:  # None disables all actions
            self.actions = [*self.actions, "pgembed_retry"]

    @property
    def media(self) -> Media:
        """Add our style sheet, which formats errors, to the admin's own media."""
        return super().media + Media(css={"all": ["pgembed/admin.css"]})

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows with the state of their vectors."""
        rows: QuerySet[Any] = super().get_queryset(request)
        annotated: QuerySet[Any] = rows.annotate(pgembed_state=state_of(self.model))
        return annotated

    def get_list_display(self, request: HttpRequest) -> Any:
        """Add the column."""
        return (*super().get_list_display(request), "vectors")

    def get_list_filter(self, request: HttpRequest) -> Any:
        """Add the filter."""
        return (*super().get_list_filter(request), VectorsFilter)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Add the line with the state of the vectors to a row's page."""
        return (*super().get_readonly_fields(request, obj), "vectors_field")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Add the line also if the subclass declares its fieldsets."""
        fieldsets: Any = super().get_fieldsets(request, obj)
        if "vectors_field" in flatten_fieldsets(fieldsets):
            return fieldsets
        return [*fieldsets, (None, {"fields": ["vectors_field"]})]

    def get_object(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Return the row of a page, with the error and the button that the viewer is shown."""
        row: Any = super().get_object(request, *args, **kwargs)
        if getattr(row, "pgembed_state", "") in ("failed", "dismissed", "pending"):
            units = self._units(request, row.__class__._base_manager.filter(pk=row.pk))
            row.pgembed_errors = units.filter(UNSETTLED).values_list("last_error")
            row.pgembed_may_retry = self.has_pgembed_retry_permission(request)
        return row

    def has_pgembed_retry_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may retry failed units."""
        return ACTIONS["retry"].is_allowed(request)

    @admin.action(
        permissions=["pgembed_retry"],
        description=gettext_lazy("Retry embedding selected %(verbose_name_plural)s"),
    )
    def pgembed_retry(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Retry the failed units of these rows, and make jobs in backoff due now."""
        action = ACTIONS["retry"]
        units = self._units(request, queryset)
        found = list(units.filter(action.condition).order_by("pk")[:MAX_JOBS])
        counts, rest = work_through(action, found, using=units.db)
        counts["unchecked"] = len(rest)
        log(request, summary(counts), about=found[: len(found) - len(rest)])
        self.message_user(request, summary(counts), level(counts))

    def _units(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Job]:
        """Return the jobs of these rows, from the database that the rows are written to."""
        shown: Any = self.get_queryset(request)
        # As for a write, so that a router does not choose a replica. A queryset's using() stays.
        shown._for_write = True  # noqa: SLF001
        # Cast by Postgres: jobs hold the keys as it prints them.
        keys = rows.using(shown.db).order_by().values_list(Cast("pk", TextField()))
        units = Job.objects.using(shown.db).filter(source_pk__in=keys)
        return units.filter(spec__in=[spec.key for spec in specs.of(self.model)])

    def get_urls(self) -> list[URLPattern]:
        """Add the button's URL."""
        retry = path(
            "<path:object_id>/pgembed-retry/",
            self.admin_site.admin_view(self.pgembed_retry_view),
            name=self._retry_name(),
        )
        return [retry, *super().get_urls()]

    def _retry_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_pgembed_retry"

    @admin.display(description=gettext_lazy("vectors"))
    def vectors(self, row: Any) -> str:
        """The state in words, or a dash: rows of other pages, such as history, lack the state."""
        return str(STATES.get(getattr(row, "pgembed_state", ""), "-"))

    @admin.display(description=gettext_lazy("vectors"))
    def vectors_field(self, row: Any) -> SafeString | str:
        """The state on the page of a row, with its errors and a button to retry."""
        state = self.vectors(row)
        if getattr(row, "pgembed_state", "") == "fresh":
            return f"{state}{_cut(row)}"
        button: SafeString | str = ""
        if getattr(row, "pgembed_may_retry", False):
            # It posts to another URL, so that it does not save the form.
            button = format_html(
                '<button type="submit" class="button" formnovalidate formaction="{}">{}</button>',
                reverse(
                    f"{self.admin_site.name}:{self._retry_name()}",
                    args=[admin.utils.quote(row.pk)],
                ),
                _("Retry embedding"),
            )
        errors = format_html_join(
            "", '<pre class="pgembed-error">{}</pre>', getattr(row, "pgembed_errors", ())
        )
        return format_html("{} {}{}", state, button, errors)

    def pgembed_retry_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Retry one row's unit, and go back to its page."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_view_permission(request) and self.has_pgembed_retry_permission(request)):
            raise PermissionDenied
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        self.pgembed_retry(request, self.model._base_manager.filter(pk=row.pk))
        return HttpResponseRedirect(request.path.removesuffix("pgembed-retry/") + "change/")


def _cut(row: Any) -> str:
    """Return in words how many passages of a row the active space's model cut. Empty: none."""
    chunks = {"source_id": row.pk, "space__state": Space.State.ACTIVE, "was_cut": True}
    count = sum(
        spec.embedding_model._base_manager.using(row._state.db)
        .filter(space__spec=spec.key, **chunks)
        .count()
        for spec in specs.of(row.__class__)
    )
    said = ngettext(
        ". %d passage did not fit the model as a whole.",
        ". %d passages did not fit the model as a whole.",
        count,
    )
    return said % count if count else ""


# The state of a row's vectors. The query of a page computes it for all its rows.


def state_of(model: Any) -> Case:
    """Return an expression on the outer row: the worst state among its units."""
    declared = specs.of(model)
    keys = [spec.key for spec in declared]
    matches = reduce(or_, (spec.when or Q(pk__isnull=False) for spec in declared))
    # A spec that leaves the row out has no vectors of it.
    fresh = reduce(
        and_, (_is_fresh(spec) | ~spec.when if spec.when else _is_fresh(spec) for spec in declared)
    )
    return Case(
        When(_has_job(keys, OPEN_FAILURE), then=Value("failed")),
        When(~matches, then=Value("outside")),
        # Two lookups, not one for both statuses: each status has its own index.
        When(_has_job(keys, PENDING) | _has_job(keys, RUNNING), then=Value("pending")),
        When(_has_job(keys, DISMISSED), then=Value("dismissed")),
        When(fresh, then=Value("fresh")),
        default=Value("missing"),
        output_field=CharField(),
    )


def _has_job(keys: list[str], status: Q) -> Q:
    """Return the condition that the outer row has a job with this status in any of the specs."""
    outer = Cast(OuterRef("pk"), TextField())
    return Q(spaces.LookedUp(Job.objects.filter(status, spec__in=keys, source_pk=outer)))


def _is_fresh(spec: specs.Spec) -> Q:
    """Return the condition that a search can find the outer row."""
    chunks = spec.embedding_model._base_manager.filter(
        spaces.FOUND,
        source_id=OuterRef("pk"),
        space__spec=spec.key,
        space__state=Space.State.ACTIVE,
    )
    if spec.stale == "hide":
        chunks = chunks.exclude(text_digest=b"hidden")
    return Q(spaces.LookedUp(chunks))
