"""The swap's short form: that it runs and counts right, not how fast. In full by hand:

``python -m benchmarks swap``
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.live.test_soak import environment


@pytest.mark.live
@pytest.mark.timeout(240)
def test_a_swap_with_killed_workers_mixes_and_hides_nothing(tmp_path: Path) -> None:
    figures = tmp_path / "swap.json"

    swap = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks", "swap", "--counts-only", "--json", figures),
            *("--rows", "400", "--repeats", "1", "--kills", "1", "--calm-seconds", "1"),
        ],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
    )

    assert swap.returncode == 0, swap.stdout + swap.stderr
    told = json.loads(figures.read_text())
    assert not any(told["to be zero"].values())
    [counted] = told["rounds"]
    assert counted["workers that were killed"] == 2
    assert counted["rows that were written"] > 0
    assert counted["their vectors that were checked"] > 100
