"""The example's pages, whose tests run in its own settings."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import REPOSITORY


def test_the_pages_of_the_example_do_what_they_say():
    command = [sys.executable, "-m", "pytest", "-q", "--ds", "tests.example.settings"]
    ran = subprocess.run(
        [*command, "tests/example"], cwd=REPOSITORY, capture_output=True, text=True
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
