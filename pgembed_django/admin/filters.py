"""The filters of the job list. Their choices come from code, never from the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from pgembed_django import specs
from pgembed_django.models import Job
from pgembed_django.models.job import OPEN_FAILURE, PENDING, RUNNING

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise


class Shown(NamedTuple):
    """One choice of the status filter, in the order of the index that its rows are in."""

    title: _StrPromise
    condition: Q
    ordering: tuple[str, ...] = ("-id",)


STATUSES = {
    "failed": Shown(_("Failed"), OPEN_FAILURE, ("-finished_at", "-id")),
    "pending": Shown(_("Pending"), PENDING),
    "running": Shown(_("Running"), RUNNING),
    "succeeded": Shown(_("Succeeded"), Q(status=Job.Status.SUCCEEDED)),
    "dismissed": Shown(_("Dismissed"), Q(status="dismissed", settled_at__isnull=True)),
    "settled": Shown(_("Failed, settled since"), Q(settled_at__isnull=False)),
}


class StatusFilter(admin.SimpleListFilter):
    """Open failures apart from those that were retried, dismissed or overtaken."""

    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, _StrPromise]]:
        """Return the choices."""
        return [(status, shown.title) for status, shown in STATUSES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the jobs of the chosen status."""
        shown = STATUSES.get(self.value() or "")
        return queryset.filter(shown.condition) if shown else queryset


class SpecFilter(admin.SimpleListFilter):
    """By spec. A spec that is gone is found by searching for its key."""

    title = _("spec")
    parameter_name = "spec"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the specs of this process."""
        return [(spec.key, spec.key) for spec in specs.all()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the jobs of the chosen spec."""
        keys = {spec.key for spec in specs.all()}
        return queryset.filter(spec=self.value()) if self.value() in keys else queryset
