"""The overview's data: whether search is fresh, why not, and what can be done about it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import router
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from pgembed_django import specs
from pgembed_django.admin import actions, drawing
from pgembed_django.models import Job, Rollup
from pgembed_django.moments import seconds_between
from pgembed_django.ops import status
from pgembed_django.ops.formatting import duration as in_words
from pgembed_django.ops.status import Overview, Point, ProviderStatus, SpecStatus

REFRESH_SECONDS = 10
RANGES = {"1": gettext_lazy("last hour"), "24": gettext_lazy("last day")}
TITLES = {
    "fresh": gettext_lazy("Fresh"),
    "indexing": gettext_lazy("Indexing"),
    "degraded": gettext_lazy("Degraded"),
    "stalled": gettext_lazy("Stalled"),
}


def of(request: HttpRequest) -> dict[str, Any] | None:
    """Return the template's context, or None if the viewer may not view jobs."""
    if not request.user.has_perm("pgembed.view_job"):
        return None
    seen = status.overview(using=actions.using())
    hours = request.GET.get("hours", "1")
    hours = hours if hours in RANGES else "1"
    points = status.series(using=actions.using(), hours=int(hours), now=seen.at)
    return {
        "at": seen.at,
        "seconds": REFRESH_SECONDS,
        "is_reloading": "refresh" in request.GET,
        "specs": [_spec(spec) for spec in sorted(seen.specs, key=_urgency)],
        "unknown": [(key, str(count)) for key, count in seen.unknown.items()],
        "elsewhere": _elsewhere(),
        "workers": seen.workers,
        "providers": [(one, _next_try(one, seen.at)) for one in seen.providers],
        "hours": hours,
        "ranges": RANGES.items(),
        "charts": _charts(points, str(RANGES[hours])),
        "failures": str(_failures(seen)),
        "may_operate": actions.ACTS["reembed"].is_allowed(request),
    }


def duration(seconds: float | None) -> str:
    """Return a duration in words, and a dash for None."""
    if seconds is None:
        return "-"
    return in_words(seconds) if seconds >= 1 else drawing.short(round(seconds, 3), "s")


def per_minute(units_per_second: float) -> str:
    """Return units per minute as text: whole numbers, except for rates below ten."""
    rate = units_per_second * 60
    return f"{rate:,.0f}" if rate >= 10 else drawing.short(rate)


def _urgency(spec: SpecStatus) -> tuple[int, str]:
    """Return a sort key: the worst spec comes first."""
    return -status.STATES.index(spec.verdict.state), spec.key


def _failures(seen: Overview) -> status.Count:
    counts = [spec.open_failures for spec in seen.specs] + list(seen.unknown.values())
    return sum(counts, status.Count(0))


def _elsewhere() -> list[tuple[str, str]]:
    """Return (database, spec key) of the specs that this page does not show."""
    here = specs.on(actions.using())
    return [(router.db_for_write(spec.model), spec.key) for spec in specs.all() if spec not in here]


def _spec(spec: SpecStatus) -> dict[str, Any]:
    kinds = dict(Job.Kind.choices)
    return {
        "is": spec,
        "state": TITLES[spec.verdict.state],
        "waiting": str(spec.waiting),
        "running": str(spec.running),
        "failures": spec.open_failures and str(spec.open_failures),
        "backlog": [
            (kinds.get(one.kind, one.kind), str(one.waiting), one.later and str(one.later))
            for one in spec.backlog
        ],
        "rate": per_minute(spec.units_per_second),
        "spaces": [
            (space, str(space.coverage or _("not known just now")), _percent(space))
            for space in (spec.active, spec.building)
            if space
        ],
    }


def _next_try(provider: ProviderStatus, now: datetime) -> str:
    """Return in words when a worker tries the provider again. Empty: none is waiting to."""
    if provider.retries_at is None:
        return ""
    seconds = seconds_between(now, provider.retries_at)
    return _("Next try in %s.") % in_words(seconds) if seconds >= 1 else _("The next try is due.")


def _percent(space: status.SpaceStatus) -> int:
    # Never rounded up to 100.
    return int(space.coverage.ratio * 100) if space.coverage else 0


def _charts(points: list[Point], span: str) -> list[dict[str, Any]]:
    is_hour = points[0].seconds == Rollup.Width.MINUTE
    each = _("minute") if is_hour else _("quarter of an hour")
    began = _("an hour ago") if is_hour else _("a day ago")
    completed, failed = [one.completed for one in points], [one.failed for one in points]
    p50, p99 = [one.p50_seconds for one in points], [one.p99_seconds for one in points]
    known = [value for value in p99 if value is not None]
    told = {"span": span, "each": each}
    throughput = ngettext(
        "%(sum)s row in the %(span)s, at most %(max)s in a %(each)s",
        "%(sum)s rows in the %(span)s, at most %(max)s in a %(each)s",
        sum(completed),
    ) % {**told, "sum": f"{sum(completed):,}", "max": f"{max(completed):,}"}
    freshness = (
        _("From write to vector: at worst %(max)s for the slowest hundredth in the %(span)s")
        % {**told, "max": duration(max(known))}
        if known
        else _("No write was embedded in the %(span)s") % told
    )
    failures = ngettext(
        "%(sum)s row failed in the %(span)s", "%(sum)s rows failed in the %(span)s", sum(failed)
    ) % {**told, "sum": f"{sum(failed):,}"}
    return [
        {
            "title": _("Rows embedded each %(each)s") % told,
            "told": throughput,
            "svg": drawing.bars(completed, label=throughput, began=began),
        },
        {
            "title": _("Freshness: p50 and p99"),
            "told": freshness,
            "svg": drawing.lines({"p99": p99, "p50": p50}, label=freshness, began=began, unit="s"),
            "series": ["p50", "p99"],
        },
        {
            "title": _("Failures each %(each)s") % told,
            "told": failures,
            "svg": drawing.bars(failed, label=failures, began=began, kind="failed"),
        },
    ]
