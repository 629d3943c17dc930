"""Parse and check conditions like ``oldest>5m or failures>0 or coverage<0.99``. Pure.

``and`` binds more tightly than ``or``; there are no parentheses.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from pgembed_django.exceptions import did_you_mean
from pgembed_django.status.queue import MIN_COUNT
from pgembed_django.status.shapes import Count, SpecStatus

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
PERCENT = {"%": 0.01}

# Name -> unit -> factor. A number without a unit is in seconds, or a share from 0 to 1.
NAMES: dict[str, dict[str, float]] = {
    "oldest": SECONDS,
    "p50": SECONDS,
    "p99": SECONDS,
    "eta": SECONDS,
    "coverage": PERCENT,
    "failures": {},
    "waiting": {},
    "workers": {},
}
COUNTED = ("failures", "waiting")
COMPARISON = re.compile(r"\s*(\w+)\s*([<>]=?)\s*(\d+(?:\.\d+)?)\s*([a-z%]*)\s*")


class BadCondition(ValueError):
    """The text is not a valid condition. The message says what to write."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a named value with a number. Times are in seconds."""

    text: str
    name: str
    compare: Callable[[float, float], bool]
    number: float


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition: it holds if in any of ``alternatives`` all comparisons hold."""

    alternatives: tuple[tuple[Comparison, ...], ...]

    def reasons(self, status: SpecStatus) -> list[str]:
        """Return the alternatives that hold for a spec, as text. Empty: the condition is false.

        A comparison with an unknown value (a coverage that could not be read) does not hold.
        """
        return self._holding(lambda name: value(status, name))

    def reasons_of_undeclared(self, failures: Count) -> list[str]:
        """Return those that hold for an undeclared spec, of which only the failures are known."""
        return self._holding(lambda name: failures.value if name == "failures" else None)

    def _holding(self, look: Callable[[str], float | None]) -> list[str]:
        found = []
        for comparisons in self.alternatives:
            values = [look(comparison.name) for comparison in comparisons]
            if all(
                known is not None and comparison.compare(known, comparison.number)
                for known, comparison in zip(values, comparisons, strict=True)
            ):
                found.append(" and ".join(comparison.text for comparison in comparisons))
        return found


def parse(text: str) -> Condition:
    """Parse a condition.

    Raises:
        BadCondition: the text is not a valid condition.
    """
    return Condition(
        tuple(
            tuple(_comparison(part) for part in re.split(r"\band\b", alternative))
            for alternative in re.split(r"\bor\b", text)
        )
    )


def value(status: SpecStatus, name: str) -> float | None:
    """Return the value that a condition calls ``name``, or None if it is unknown."""
    match name:
        case "oldest":
            return status.oldest_change_seconds or 0.0
        case "p50":
            return status.p50_seconds or 0.0
        case "p99":
            return status.p99_seconds or 0.0
        case "eta":
            return float("inf") if status.eta_seconds is None else status.eta_seconds
        case "coverage":
            if status.active is None:
                return 0.0  # nothing is searched yet
            return status.active.coverage.ratio if status.active.coverage else None
        case "failures":
            return status.open_failures.value
        case "waiting":
            return status.waiting.value
        case _:
            return status.workers


def _comparison(text: str) -> Comparison:
    match = COMPARISON.fullmatch(text)
    if match is None:
        raise BadCondition(
            f"{text.strip()!r} is no comparison. Write it like oldest>5m, failures>0 or "
            "coverage<0.99, and join several with 'and' and 'or'."
        )
    name, compare, number, unit = match.groups()
    if name not in NAMES:
        raise BadCondition(
            f"There is no {name!r}. {did_you_mean(name, NAMES)}There are: {', '.join(NAMES)}."
        )
    if unit and unit not in NAMES[name]:
        units = ", ".join(NAMES[name])
        raise BadCondition(
            f"{text.strip()!r}: {name} has no unit {unit!r}. "
            + (f"Its units are: {units}." if units else "It is a plain number.")
        )
    parsed = float(number) * NAMES[name].get(unit, 1.0)
    if name == "coverage" and parsed > 1:
        raise BadCondition(f"{text.strip()!r}: coverage is a share from 0 to 1, or like 99%.")
    if name in COUNTED and parsed >= MIN_COUNT:
        raise BadCondition(
            f"{text.strip()!r}: {name} are not counted beyond {MIN_COUNT:,}. Compare with less."
        )
    return Comparison(" ".join(text.split()), name, OPERATORS[compare], parsed)
