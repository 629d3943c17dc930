"""The soak's short form. Ten minutes of it are run by hand: ``python -m benchmarks soak``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import postgres
from tests.conftest import REPOSITORY

SECONDS = float(os.environ.get("PGEMBED_SOAK_SECONDS", "40"))
"""Of fire. It takes some seconds before to begin, and after to drain: a minute in all."""

SEED = os.environ.get("PGEMBED_SOAK_SEED", "1")


@pytest.mark.live
@pytest.mark.timeout(SECONDS + 240)
@pytest.mark.parametrize(
    ("capture", "seconds"), [("trigger", SECONDS), ("wal", SECONDS / 2), ("message", SECONDS / 2)]
)
def test_nothing_is_lost_stale_or_stuck_after_a_minute_under_fire(
    tmp_path: Path, capture: str, seconds: float
) -> None:
    figures = tmp_path / "soak.json"

    soak = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks", "soak", "--seed", SEED),
            *("--seconds", str(seconds), "--workers", "2", "--writers", "3"),
            *("--capture", capture),
            *("--json", figures),
        ],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
    )

    assert soak.returncode == 0, soak.stdout + soak.stderr
    told = json.loads(figures.read_text())
    assert not any(told["to be zero"].values())
    # It was no stroll.
    assert told["figures"]["rows written"] > SECONDS
    assert told["figures"]["workers started"] > 2


def environment() -> dict[str, str]:
    """Without the address of these tests' own server: the soak restarts one that is its own."""
    others = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    return {**others, "DATABASE_URL": postgres.GIVEN} if postgres.GIVEN else others
