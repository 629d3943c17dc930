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
from pgembed_django import conf, search, specs
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.queue.worker import Worker
from pgembed_django.retrieval import queries
from tests.app.models import Article
from tests.conftest import embedded_text, wait_until
from tests.live.conftest import is_asleep, providers
from tests.played import Ollama, serving

PACKAGE = Path(pgembed_django.__file__).parent


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
def awake_worker(settings) -> Iterator[Worker]:
    """A worker in a thread, which has embedded a row and now listens for the next one."""
    with serving(Ollama()) as server:
        settings.PGEMBED_PROVIDERS = providers(server)
        # Chores walk elsewhere at the same time.
        settings.PGEMBED_RECONCILE_SECONDS = settings.PGEMBED_REAP_SECONDS = 0
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
    queries.vectors.clear()
    search(Article, "granite")  # reads what a process reads once, such as statistics
    found = []

    passed = files_passed(lambda: found.append(search(Article, "trout")))

    assert [results.ranking for results in found] == ["hybrid"]
    assert "retrieval/searching.py" in passed
    assert len(passed) <= 15, " ".join(sorted(passed))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="cannot profile all threads before 3.12")
@pytest.mark.django_db(transaction=True)
def test_a_saved_row_reads_like_a_story(make_article, awake_worker):
    """From the claim of its job to its stored vector, in the order of time, in all threads."""
    before = make_article(title="before")
    wait_until(lambda: embedded_text(before))
    wait_until(is_asleep)
    calls: list[Call] = []
    here = threading.current_thread()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and threading.current_thread() is not here:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE):
                calls.append(Call(str(path.relative_to(PACKAGE)), frame.f_code.co_name))

    threading.setprofile_all_threads(note)  # type: ignore[arg-type]
    try:
        row = make_article(title="row")
        wait_until(lambda: embedded_text(row))
    finally:
        threading.setprofile_all_threads(None)

    names = [call.function for call in calls]
    embedded = names.index("embed_batch")
    claimed = max(index for index, name in enumerate(names[:embedded]) if name == "claim")
    completed = len(names) - 1 - names[::-1].index("complete")
    walk = calls[claimed : completed + 1]
    files = {call.file for call in walk}
    changes = sum(one.file != other.file for one, other in pairwise(walk))
    assert len(files) <= 30, f"{len(files)} files: {' '.join(sorted(files))}"
    assert changes <= 120, f"{changes} changes: {' '.join(call.file for call in walk)}"
