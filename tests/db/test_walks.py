"""How many files of the package one call passes through."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pgembed_django
from pgembed_django import search
from pgembed_django.retrieval import queries
from tests.app.models import Article

pytestmark = pytest.mark.django_db

PACKAGE = Path(pgembed_django.__file__).parent


def files_passed(call: Callable[[], Any]) -> set[str]:
    """Return the files of the package whose functions the call runs in this thread."""
    passed: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            passed.add(frame.f_code.co_filename)

    profiler = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(profiler)
    found = [Path(name) for name in passed]
    return {str(path.relative_to(PACKAGE)) for path in found if path.is_relative_to(PACKAGE)}


def test_a_search_reads_like_a_story(make_article, run_jobs):
    make_article(title="Swimming", contents="A trout swims in the river.")
    run_jobs()
    queries.vectors.clear()
    search(Article, "granite")  # reads what a process reads once, such as statistics
    found = []

    passed = files_passed(lambda: found.append(search(Article, "trout")))

    assert [results.ranking for results in found] == ["hybrid"]
    assert "retrieval/searching.py" in passed
    assert len(passed) <= 15, " ".join(sorted(passed))
