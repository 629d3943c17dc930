"""Charts as inline SVG, drawn on the server. Pure: no database, no clock, no script.

Their colours are in the style sheet. Each chart also has a label in words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

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
