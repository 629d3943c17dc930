"""The short form of the benchmark of searches: that both sides find the same, not how fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.search.latency import SHARES
from tests.conftest import REPOSITORY
from tests.live.test_soak import environment


@pytest.mark.live
@pytest.mark.timeout(240)
def test_searches_find_what_the_statement_by_hand_finds(tmp_path: Path) -> None:
    figures = tmp_path / "latency.json"

    measured = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks", "search-latency", "--counts-only"),
            *("--rows", "400", "--rounds", "1", "--questions", "8", "--json", figures),
        ],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
    )

    assert measured.returncode == 0, measured.stdout + measured.stderr
    [told] = json.loads(figures.read_text())
    assert told["rows"] == 400
    assert set(told["shares"]) == set(SHARES)
    assert told["same answer"] >= 0.9
