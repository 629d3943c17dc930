from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgembed_django.core.moments import seconds_between


@pytest.mark.parametrize("seconds", [20, 0, -20])
def test_the_seconds_between_two_moments_are_those_that_pass(seconds):
    start = datetime(2026, 10, 25, 0, 59, 50, tzinfo=UTC)

    assert seconds_between(start, start + timedelta(seconds=seconds)) == seconds


def test_on_the_last_night_of_summer_time_too(settings: Any):
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"
    start = datetime(2026, 10, 25, 2, 59, 50)
    end = datetime(2026, 10, 25, 2, 0, 10, fold=1)

    assert seconds_between(start, end) == 20
