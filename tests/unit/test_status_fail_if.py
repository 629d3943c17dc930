from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from pgembed_django.status import Count, Coverage, SpaceStatus, SpecStatus, Verdict, fail_if

SPACE = SpaceStatus(
    id=1,
    provider="default",
    model="m",
    dimensions=3,
    is_active=True,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    coverage=Coverage(rows=1000, covered=980, is_estimated=False),
    eta_seconds=None,
    exchanged="",
)
STATUS = SpecStatus(
    key="app.Spec",
    verdict=Verdict("fresh", "Good."),
    active=SPACE,
    building=None,
    backlog=(),
    running=Count(0),
    oldest_change_seconds=400.0,
    open_failures=Count(2),
    dismissed=Count(0),
    units_per_second=1.0,
    p50_seconds=0.5,
    p99_seconds=2.0,
    eta_seconds=0.0,
    workers=1,
    paused_by="",
)


def reasons(condition: str, **values: Any) -> list[str]:
    return fail_if.parse(condition).reasons(dataclasses.replace(STATUS, **values))


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("oldest>5m", True),
        ("oldest > 400", False),
        ("oldest>=400s", True),
        ("oldest>1h", False),
        ("failures>0", True),
        ("failures<=1", False),
        ("coverage<0.99", True),
        ("coverage<98%", False),
        ("workers<1", False),
        ("waiting>0", False),
        ("p99>1.5s", True),
        ("p50>1", False),
        ("eta>0", False),
        ("failures>5 or oldest>5m", True),
        ("failures>0 and oldest>1d", False),
        ("failures>5 or failures>0 and oldest>5m", True),
    ],
)
def test_a_condition_holds_or_not(condition: str, holds: bool) -> None:
    assert bool(reasons(condition)) is holds


def test_the_reasons_are_the_comparisons_that_hold() -> None:
    assert reasons("oldest>5m or failures > 0 or coverage<0.5") == ["oldest>5m", "failures > 0"]


def test_what_is_not_known_fails_nothing_but_what_is_not_searched_does() -> None:
    unknown = dataclasses.replace(SPACE, coverage=None)

    assert reasons("coverage<0.99", active=unknown) == []
    assert reasons("coverage<0.99", active=None) == ["coverage<0.99"]
    assert reasons("eta>1h", eta_seconds=None) == ["eta>1h"]
    assert reasons("oldest>0 or p99>0 or p50>0", oldest_change_seconds=None) != []


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("", "is no comparison"),
        ("failures", "is no comparison"),
        ("failures==0", "is no comparison"),
        ("failures>0 or", "is no comparison"),
        ("(failures>0)", "is no comparison"),
        ("__import__('os')>1", "is no comparison"),
        ("failure>0", "There is no 'failure'. Did you mean 'failures'? There"),
        ("failures>5m", "has no unit 'm'. It is a plain number"),
        ("oldest>5min", "Its units are: s, m, h, d"),
        ("coverage<99", "a share from 0 to 1"),
        ("failures>100000", "not counted beyond 1,000"),
    ],
)
def test_what_is_no_condition_is_refused_with_a_reason(condition: str, message: str) -> None:
    with pytest.raises(fail_if.BadCondition, match=None) as caught:
        fail_if.parse(condition)
    assert message in str(caught.value)
