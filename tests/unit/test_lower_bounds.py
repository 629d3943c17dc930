"""What is asked for at least is what the tests run with in tox's ``lowest``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

REQUIREMENT = re.compile(r"^([a-z0-9-]+)>=([0-9.]+)$")


def bounds(requirements: list[str]) -> dict[str, str]:
    return dict(match.groups() for one in requirements if (match := REQUIREMENT.match(one)))


def test_lower_bounds_are_tried() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    asked = bounds(project["dependencies"])
    assert len(asked) == len(project["dependencies"])
    for extra in ("metrics", "opentelemetry"):
        asked |= bounds(project["optional-dependencies"][extra])

    tox = (REPOSITORY / "tox.ini").read_text()
    tried = dict(re.findall(r"^ +lowest: (?:.* )?([a-z0-9-]+)==([0-9.]+)$", tox, re.MULTILINE))

    assert tried == asked
