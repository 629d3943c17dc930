"""How many files of the package a search and a saved row pass through."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

import pgembed_django
from pgembed_django import conf, search
from pgembed_django.declaration import specs
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.models import Job
from pgembed_django.queue import listener
from pgembed_django.queue.worker import Worker
from pgembed_django.retrieval import query_vectors
from tests.app.models import Article
from tests.conftest import embedded_text, wait_until
from tests.live.conftest import is_asleep, providers
from tests.played import Ollama, serving

PACKAGE = Path(pgembed_django.__file__).parent
CHORES = {"pgembed-keeper", "pgembed-builder"}
"""The threads that tend to other things than rows."""


class Call(NamedTuple):
    """A call of a function of the package."""

    file: str
    function: str


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


@pytest.fixture
def awake_worker(settings, monkeypatch) -> Iterator[Worker]:
    """A worker in a thread. It does not look for other jobs while it waits for an answer."""
    monkeypatch.setattr(listener, "LAST_LOOK_SECONDS", 1.0)
    with serving(Ollama()) as server:
        settings.PGEMBED_PROVIDERS = providers(server)
        known = {spec.key: spec for spec in specs.all()}
        handler = EmbeddingHandler(known, using="default", settings=conf.current())
        worker = Worker([handler], using="default")
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield worker
        finally:
            worker.stop()
            thread.join()


@pytest.mark.django_db
def test_a_search_reads_like_a_story(make_article, run_jobs):
    make_article(title="Swimming", contents="A trout swims in the river.")
    run_jobs()
    query_vectors.vectors.clear()
    search(Article, "granite")  # reads what a process reads once, such as statistics
    found = []

    passed = files_passed(lambda: found.append(search(Article, "trout")))

    assert [results.ranking for results in found] == ["hybrid"]
    assert "retrieval/searching.py" in passed
    assert len(passed) <= 19, " ".join(sorted(passed))


def changes_of_file(walk: list[Call]) -> int:
    return sum(one.file != other.file for one, other in pairwise(walk))


def walk_of_a_row(make_article: Callable[..., Article]) -> list[Call]:
    """Return the calls between the claim of a row's job and its stored vector, in all threads."""
    calls: list[Call] = []
    here = threading.current_thread()

    def note(frame: FrameType, event: str, _: Any) -> None:
        thread = threading.current_thread()
        # Chores walk elsewhere at the same time.
        if event == "call" and thread is not here and thread.name not in CHORES:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE):
                calls.append(Call(str(path.relative_to(PACKAGE)), frame.f_code.co_name))

    wait_until(lambda: not Job.objects.filter(status__in=["pending", "running"]).exists())
    wait_until(is_asleep)
    threading.setprofile_all_threads(note)  # type: ignore[arg-type]
    try:
        row = make_article()
        wait_until(lambda: embedded_text(row))
    finally:
        threading.setprofile_all_threads(None)
    names = [call.function for call in calls]
    embedded = names.index("embed_batch")
    claims = [index for index, name in enumerate(names[:embedded]) if name == "claim"]
    if not claims:  # the last look before it slept had begun, and has seen the row
        return walk_of_a_row(make_article)
    return calls[claims[-1] : names.index("complete", embedded)]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="cannot profile all threads before 3.12")
@pytest.mark.django_db(transaction=True)
def test_a_saved_row_reads_like_a_story(make_article, awake_worker):
    before = make_article()
    wait_until(lambda: embedded_text(before))

    # On a busy machine threads take turns in the middle of their ways.
    walk = min((walk_of_a_row(make_article) for _ in range(5)), key=changes_of_file)

    files = {call.file for call in walk}
    changes = changes_of_file(walk)
    assert len(files) <= 31, f"{len(files)} files: {' '.join(sorted(files))}"
    assert changes <= 125, f"{changes} changes: {' '.join(call.file for call in walk)}"
