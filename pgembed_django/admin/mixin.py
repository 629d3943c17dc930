"""A mixin for users' own ModelAdmins: shows whether a row's vectors are fresh, and retries."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.utils import flatten_fieldsets, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Case, CharField, Model, OuterRef, Q, QuerySet, TextField, Value, When
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

from pgembed_django import spaces, specs
from pgembed_django.admin import actions
from pgembed_django.models import Job, Space
from pgembed_django.models.job import DISMISSED, OPEN_FAILURE, PENDING, RUNNING, UNSETTLED

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = object

MAX_SELECTED = 1000

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
        if self.value() not in STATES:
            return queryset
        return queryset.filter(pgembed_state=self.value())


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
        """Add our style sheet, which formats errors and states, to the admin's own media."""
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
        return (*super().get_readonly_fields(request, obj), self._vectors_field(request))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Add the line also if the subclass declares its fieldsets."""
        fieldsets: Any = super().get_fieldsets(request, obj)
        line: Any = self._vectors_field(request)
        if line in flatten_fieldsets(fieldsets):
            return fieldsets
        return [*fieldsets, (None, {"fields": [line]})]

    def has_pgembed_retry_permission(self, request: HttpRequest) -> bool:
        """Return whether the viewer may retry failed units."""
        return actions.ACTIONS["retry"].is_allowed(request)

    @admin.action(
        permissions=["pgembed_retry"],
        description=gettext_lazy("Retry embedding selected %(verbose_name_plural)s"),
    )
    def pgembed_retry(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Retry the units of the selected rows."""
        pks = list(queryset.order_by("pk").values_list("pk", flat=True)[: MAX_SELECTED + 1])
        if len(pks) > MAX_SELECTED:
            said = _("These are more than %d rows. Nothing was done: use the job list for so many.")
            self.message_user(request, said % MAX_SELECTED, messages.WARNING)
        else:
            _retry_rows(self, request, pks)

    def get_urls(self) -> list[URLPattern]:
        """Add the button's URL."""
        info = self.model._meta.app_label, self.model._meta.model_name
        retry = path(
            "<path:object_id>/pgembed-retry/",
            self.admin_site.admin_view(self.pgembed_retry_view),
            name="{}_{}_pgembed_retry".format(*info),
        )
        return [retry, *super().get_urls()]

    @admin.display(description=gettext_lazy("vectors"))
    def vectors(self, row: Any) -> SafeString | str:
        """The state in words, or a dash: rows of other pages, such as history, lack the state."""
        state = getattr(row, "pgembed_state", None)
        if state is None:
            return "-"
        return format_html('<span class="pgembed-state pgembed-{}">{}</span>', state, STATES[state])

    def _vectors_field(self, request: HttpRequest) -> Callable[[Any], SafeString | str]:
        """Return the field of a row's page, with a button for viewers who may retry.

        Always the same function for one request, so that Django finds it in the fieldsets.
        """
        if hasattr(request, "pgembed_vectors_field"):
            known: Callable[[Any], SafeString | str] = request.pgembed_vectors_field
            return known

        @admin.display(description=gettext_lazy("vectors"))
        def vectors_field(row: Any) -> SafeString | str:
            if row is None or row._state.adding:
                return "-"
            state = self.vectors(row)
            known = getattr(row, "pgembed_state", "")
            if known not in ("failed", "dismissed", "pending"):
                said = _cut(self.model, row) if known == "fresh" else ""
                return format_html("{} {}", state, said)
            units = _units(self, request, [row.pk])
            errors = units.filter(UNSETTLED).values_list("last_error")
            button = self._button(row) if actions.ACTIONS["retry"].is_allowed(request) else ""
            shown = format_html_join("", '<pre class="pgembed-error">{}</pre>', errors)
            return format_html("{} {}{}", state, button, shown)

        request.pgembed_vectors_field = vectors_field  # type: ignore[attr-defined]
        return vectors_field

    def _button(self, row: Any) -> SafeString:
        """Return a button that posts to another URL, so that it does not save the form."""
        name = f"{row._meta.app_label}_{row._meta.model_name}_pgembed_retry"
        return format_html(
            '<button type="submit" class="button" formnovalidate formaction="{}">{}</button>',
            reverse(f"{self.admin_site.name}:{name}", args=[admin.utils.quote(row.pk)]),
            _("Retry embedding"),
        )

    def pgembed_retry_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Retry one row's unit, and go back to its page."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_view_permission(request) and actions.ACTIONS["retry"].is_allowed(request)):
            raise PermissionDenied
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        _retry_rows(self, request, [row.pk])
        return HttpResponseRedirect(request.path.removesuffix("pgembed-retry/") + "change/")


def _units(model_admin: VectorsMixin, request: HttpRequest, pks: list[Any]) -> QuerySet[Job]:
    """Return the jobs of these rows, from the database that the rows are written to."""
    model = model_admin.model
    shown: Any = model_admin.get_queryset(request)
    # As for a write, so that a router does not choose a replica. A queryset's own using() stays.
    shown._for_write = True  # noqa: SLF001
    rows = model._base_manager.using(shown.db).filter(pk__in=pks).order_by()
    # Cast by Postgres: jobs hold the keys as it prints them.
    keys = list(rows.values_list(Cast("pk", TextField()), flat=True))
    units = Job.objects.using(shown.db).filter(source_pk__in=keys)
    return units.filter(spec__in=[spec.key for spec in specs.of(model)])


def _retry_rows(model_admin: VectorsMixin, request: HttpRequest, pks: list[Any]) -> None:
    """Retry the rows' failed units, make jobs in backoff due now, and show the results."""
    units = _units(model_admin, request, pks)
    action = actions.ACTIONS["retry"]
    found = {job.pk: job for job in units.filter(action.condition).order_by("pk")}
    counts, rest = actions.work_through(action, list(found), using=units.db)
    counts["unchecked"] = len(rest)
    said = actions.summary(action, counts)
    actions.log(request, said, about=[job for pk, job in found.items() if pk not in set(rest)])
    model_admin.message_user(request, said, actions.level(counts))


def _cut(model: type[Model], row: Model) -> str:
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


# The state of a row's vectors. The query of a page computes it for all its rows.


def state_of(model: type[Model]) -> Case:
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
