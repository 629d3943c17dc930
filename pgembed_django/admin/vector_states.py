"""The states of a source row's vectors. The query of a page computes them for all its rows."""

from __future__ import annotations

from functools import reduce
from operator import and_, or_

from django.db.models import Case, CharField, Model, OuterRef, Q, TextField, Value, When
from django.db.models.functions import Cast
from django.utils.translation import gettext_lazy

from pgembed_django import spaces, specs
from pgembed_django.models import Job, Space
from pgembed_django.models.job import DISMISSED, OPEN_FAILURE, PENDING, RUNNING

STATES = {
    "fresh": gettext_lazy("fresh"),
    "pending": gettext_lazy("pending"),
    "failed": gettext_lazy("failed"),
    "dismissed": gettext_lazy("dismissed"),
    "missing": gettext_lazy("no vectors yet"),
    "outside": gettext_lazy("not embedded"),
}


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
