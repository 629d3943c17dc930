"""The filters of the job list. Their choices come from code, not from a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin
from django.contrib.admin.views.main import ERROR_FLAG, IGNORED_PARAMS, PAGE_VAR
from django.db.models import BigIntegerField, Q, QuerySet
from django.http import HttpRequest
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from pgembed_django import specs
from pgembed_django.models import Job
from pgembed_django.models.job import DISMISSED, OPEN_FAILURE, PENDING, RUNNING

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise


class Shown(NamedTuple):
    """A choice of the status filter, with the ordering of the partial index for its rows."""

    title: _StrPromise
    condition: Q
    ordering: tuple[str, ...] = ("-id",)


STATUSES = {
    "failed": Shown(_("Failed"), OPEN_FAILURE, ("-finished_at", "-id")),
    "pending": Shown(_("Pending"), PENDING),
    "running": Shown(_("Running"), RUNNING),
    "succeeded": Shown(_("Succeeded"), Q(status=Job.Status.SUCCEEDED)),
    "dismissed": Shown(_("Dismissed"), DISMISSED),
    "settled": Shown(_("Failed, settled since"), Q(settled_at__isnull=False)),
}


class StatusFilter(admin.SimpleListFilter):
    """By status. Failures that were retried, dismissed or overtaken are not listed as failed."""

    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, _StrPromise]]:
        """Return the choices."""
        return [(status, shown.title) for status, shown in STATUSES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the jobs of the chosen status."""
        shown = STATUSES.get(self.value() or "")
        return queryset.filter(shown.condition) if shown else queryset


class Asked(admin.SimpleListFilter):
    """A filter that only links set. It is shown only while set, so that it can be removed."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the value that is set, if any."""
        asked = request.GET.get(self.parameter_name or "")
        return [(asked, Truncator(asked).chars(60))] if asked else []


class SignatureFilter(Asked):
    """Failures of one kind."""

    title = _("kind of error")
    parameter_name = "signature"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the jobs whose error has the signature."""
        return queryset.filter(signature=self.value()) if self.value() else queryset


class WorkerFilter(Asked):
    """Jobs that one worker holds."""

    title = _("worker")
    parameter_name = "worker"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the running jobs of the worker."""
        worker = self.value()
        return queryset.filter(held_by(worker)) if worker else queryset


class SpecFilter(admin.SimpleListFilter):
    """By declared spec. For a spec that is no longer declared, search for its key instead."""

    title = _("spec")
    parameter_name = "spec"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the declared specs."""
        return [(spec.key, spec.key) for spec in specs.all()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the jobs of the chosen spec."""
        keys = {spec.key for spec in specs.all()}
        return queryset.filter(spec=self.value()) if self.value() in keys else queryset


MAX_DIGITS = len(str(BigIntegerField.MAX_BIGINT))

PARAMETERS = ("status", "spec", "signature", "worker", "q")
"""The parameters that filter the job list, and so define "all that match"."""


def asked(given: Mapping[str, str]) -> dict[str, str]:
    """Return those of ``PARAMETERS`` that are set and that the list does not ignore."""
    found = {name: given[name] for name in PARAMETERS if given.get(name)}
    if found.get("status") not in STATUSES:
        found.pop("status", None)
    return found


def others(given: Mapping[str, str]) -> list[str]:
    """Return the link's lookups that we do not know: Django filters by any field of the model."""
    known = {*PARAMETERS, *IGNORED_PARAMS, PAGE_VAR, ERROR_FLAG}
    return [name for name in given if name not in known]


def matching(queryset: QuerySet[Job], parameters: Mapping[str, str]) -> QuerySet[Job]:
    """Return the jobs that the list shows for these parameters."""
    shown = STATUSES.get(parameters.get("status", ""))
    if shown:
        queryset = queryset.filter(shown.condition)
    for name in ("spec", "signature"):
        if parameters.get(name):
            queryset = queryset.filter(**{name: parameters[name]})
    if parameters.get("worker"):
        queryset = queryset.filter(held_by(parameters["worker"]))
    return queryset.filter(unit(parameters.get("q", "")))


def held_by(worker: str) -> Q:
    """Return the condition for the running jobs of a worker. An invalid id matches no job."""
    return RUNNING & Q(worker_id=int(worker)) if is_id(worker) else Q(pk__in=())


def is_id(text: str) -> bool:
    """Return whether the text can be the id of a row."""
    return text.isdecimal() and len(text) <= MAX_DIGITS


def unit(term: str) -> Q:
    """Return the condition for a spec, a key or both: exact, so that an index can be used."""
    term = term.strip()
    if not term:
        return Q()
    spec, _space, source_pk = term.partition(" ")
    return Q(spec=spec, source_pk=source_pk.strip()) | Q(source_pk=term) | Q(spec=term)
