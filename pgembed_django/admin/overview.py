"""What the overview and the page of failures show, with charts as inline SVG, drawn here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied
from django.db import router
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from pgembed_django import specs
from pgembed_django.admin import actions
from pgembed_django.models import Job, Rollup
from pgembed_django.moments import seconds_between
from pgembed_django.ops import status
from pgembed_django.ops.formatting import duration as in_words
from pgembed_django.ops.status import FailureKind, Overview, Point, ProviderStatus, SpecStatus

if TYPE_CHECKING:
    from pgembed_django.admin.jobs import JobAdmin

REFRESH_SECONDS = 10
MAX_KIND_COUNT = 5000
"""Counts of a kind of failure stop here, as "5,000+". The confirmation page counts further."""

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
    seen = status.overview(using=actions.database())
    hours = request.GET.get("hours", "1")
    hours = hours if hours in RANGES else "1"
    points = status.series(using=actions.database(), hours=int(hours), now=seen.at)
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
        "may_operate": actions.ACTIONS["reembed"].is_allowed(request),
    }


def duration(seconds: float | None) -> str:
    """Return a duration in words, and a dash for None."""
    if seconds is None:
        return "-"
    return in_words(seconds) if seconds >= 1 else short(round(seconds, 3), "s")


def per_minute(units_per_second: float) -> str:
    """Return units per minute as text: whole numbers, except for rates below ten."""
    rate = units_per_second * 60
    return f"{rate:,.0f}" if rate >= 10 else short(rate)


def _urgency(spec: SpecStatus) -> tuple[int, str]:
    """Return a sort key: the worst spec comes first."""
    return -status.STATES.index(spec.verdict.state), spec.key


def _failures(seen: Overview) -> status.Count:
    counts = [spec.open_failures for spec in seen.specs] + list(seen.unknown.values())
    return sum(counts, status.Count(0))


def _elsewhere() -> list[tuple[str, str]]:
    """Return (database, spec key) of the specs that this page does not show."""
    here = specs.on(actions.database())
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
    p50, p99 = [one.quantile(0.5) for one in points], [one.quantile(0.99) for one in points]
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
            "svg": bars(completed, label=throughput, began=began),
        },
        {
            "title": _("Freshness: p50 and p99"),
            "told": freshness,
            "svg": lines({"p99": p99, "p50": p50}, label=freshness, began=began, unit="s"),
            "series": ["p50", "p99"],
        },
        {
            "title": _("Failures each %(each)s") % told,
            "told": failures,
            "svg": bars(failed, label=failures, began=began, kind="failed"),
        },
    ]


def failures(model_admin: JobAdmin, request: HttpRequest) -> HttpResponse:
    """Show the open failures by kind of error, the most frequent first."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    spec = request.GET.get("spec")
    found = status.failure_kinds(
        using=actions.database(), specs=[spec] if spec else None, max_count=MAX_KIND_COUNT
    )
    now = timezone.now()
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": _("Failures of %s") % spec if spec else _("Failures"),
        "kinds": [_kind(model_admin, request, kind, now) for kind in found.kinds],
        "is_whole": found.is_whole,
    }
    return TemplateResponse(request, "admin/pgembed/failures.html", context)


def _kind(
    model_admin: JobAdmin, request: HttpRequest, kind: FailureKind, now: datetime
) -> dict[str, Any]:
    query = urlencode({"status": "failed", "spec": kind.spec, "signature": kind.signature})
    urls = f"{model_admin.admin_site.name}:pgembed_job"
    return {
        "is": kind,
        "number": str(kind.count),
        "first_seconds": max(0.0, seconds_between(kind.first_at, now)),
        "last_seconds": max(0.0, seconds_between(kind.last_at, now)),
        "sample_url": reverse(f"{urls}_change", args=[kind.sample_id]),
        "jobs_url": f"{reverse(f'{urls}_changelist')}?{query}",
        "actions": [
            (actions.ACTIONS[name].title, f"{reverse(f'{urls}_all', args=[name])}?{query}")
            for name in ("retry", "dismiss")
            if actions.ACTIONS[name].is_allowed(request)
        ],
    }


# Charts. Their colours are in the style sheet. Each also has a label in words.

WIDTH, HEIGHT = 380, 120
TOP, BOTTOM, LEFT = 8, 18, 52
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT, HEIGHT - TOP - BOTTOM

ROUNDED_UP = 0.9995
"""From this share of a unit on, a number rounded to three digits reads as 1 of that unit."""

DAY = 86400
SPANS = tuple(60 * one for one in (1, 2, 5, 10, 20, 30, 60, 120, 360, 720))
"""The round spans of an axis in minutes and hours, in seconds."""

Values = Sequence[float | None]
"""One value per bucket of time, oldest first. None: unknown."""


def bars(values: Values, *, label: str, began: str, unit: str = "", kind: str = "") -> SafeString:
    """Draw one bar for each bucket, with the CSS class ``kind``."""
    top = _round_up(max((value or 0 for value in values), default=0), unit)
    step = PLOT_WIDTH / max(len(values), 1)
    drawn = format_html_join(
        "",
        '<rect class="{}" x="{}" y="{}" width="{}" height="{}"></rect>',
        (
            (
                kind,
                f"{LEFT + index * step:.1f}",
                f"{_y(value, top):.1f}",
                f"{max(step - 1, 0.5):.1f}",
                f"{TOP + PLOT_HEIGHT - _y(value, top):.1f}",
            )
            for index, value in enumerate(values)
            if value
        ),
    )
    return _chart(drawn, top=top, label=label, began=began, unit=unit)


def lines(series: Mapping[str, Values], *, label: str, began: str, unit: str = "") -> SafeString:
    """Draw a line for each series, broken at unknown values. The keys are their CSS classes."""
    top = _round_up(
        max((value or 0 for values in series.values() for value in values), default=0), unit
    )
    drawn = format_html_join(
        "",
        '<path class="{}" d="{}"></path>',
        ((name, _path(values, top)) for name, values in series.items()),
    )
    return _chart(drawn, top=top, label=label, began=began, unit=unit)


def short(value: float, unit: str = "") -> str:
    """Return a number short enough for an axis. Seconds are shown as ms, s, min, h or d."""
    if unit == "s":
        for seconds, name in ((DAY, "d"), (3600, "h"), (60, "min")):
            if value >= seconds:
                return f"{value / seconds:.3g} {name}"
        is_shorter = 0 < value < ROUNDED_UP
        return f"{value * 1000:.3g} ms" if is_shorter else f"{value:.3g} s"
    for size, name in ((1e6, "M"), (1e3, "k")):
        if value >= size * ROUNDED_UP:
            return f"{value / size:.3g}{name}"
    return f"{value:.3g}"


def _chart(drawn: SafeString, *, top: float, label: str, began: str, unit: str) -> SafeString:
    return format_html(
        '<svg class="pgembed-chart" viewBox="0 0 {} {}" role="img" aria-label="{}">'
        '<line class="axis" x1="{}" y1="{}" x2="{}" y2="{}"></line>'
        '<line class="grid" x1="{}" y1="{}" x2="{}" y2="{}"></line>'
        "{}"
        '<text x="{}" y="{}" text-anchor="end">{}</text>'
        '<text x="{}" y="{}" text-anchor="end">0</text>'
        '<text x="{}" y="{}">{}</text>'
        "</svg>",
        *(WIDTH, HEIGHT, label),
        *(LEFT, TOP + PLOT_HEIGHT, WIDTH, TOP + PLOT_HEIGHT),
        *(LEFT, TOP, WIDTH, TOP),
        drawn,
        *(LEFT - 5, TOP + 9, short(top, unit)),
        *(LEFT - 5, TOP + PLOT_HEIGHT),
        *(LEFT, HEIGHT - 4, began),
    )


def _path(values: Values, top: float) -> str:
    """Return the line's SVG path. A value between two unknown ones is a short dash."""
    step = PLOT_WIDTH / max(len(values), 1)
    parts = []
    is_drawing = False
    for index, value in enumerate(values):
        if value is None:
            is_drawing = False
            continue
        x, y = LEFT + index * step, _y(value, top)
        parts.append(f"{'L' if is_drawing else 'M'}{x:.1f} {y:.1f}H{x + step:.1f}")
        is_drawing = True
    return "".join(parts)


def _y(value: float | None, top: float) -> float:
    return TOP + PLOT_HEIGHT * (1 - min((value or 0) / top, 1))


def _round_up(value: float, unit: str = "") -> float:
    """Round up to 1, 2, 5, 10 and so on, or to a round time, so that the axis seldom changes."""
    if value <= 0:
        return 1.0
    if unit == "s" and value > DAY / 2:
        return DAY * _round_up(value / DAY)
    if unit == "s" and value > 50:
        return next(span for span in SPANS if value <= span)
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power * 1.0000001)
