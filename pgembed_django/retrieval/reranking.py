"""Order the first rows of a search by a reranker, within its deadline.

The reranker is called in a thread, because a model that runs in this process cannot be timed out.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured

from pgembed_django import conf, events, rerankers
from pgembed_django.core.text import clean
from pgembed_django.core.threads import Threads
from pgembed_django.exceptions import ProviderError, ProviderTimeout, SearchError, did_you_mean
from pgembed_django.providers import answers
from pgembed_django.rerankers.base import Reranker
from pgembed_django.retrieval.outages import Outages
from pgembed_django.retrieval.results import Ranked

Value = TypeVar("Value")

MOST = 50
"""How many rows are reranked, whatever page is asked for, so that all pages have one order."""

THREADS = 8

NOT_RERANKED = "The reranker did not answer, so the order is that of the fusion."

Key = tuple[int, Any]
"""A row: the number of its model among those that are searched, and its primary key."""


def named(alias: str) -> Reranker:
    """Return the reranker that a search asks for.

    Raises:
        SearchError: PGEMBED_RERANKERS does not declare it.
        ImproperlyConfigured: the setting is wrong.
    """
    declared: object = conf.current().rerankers
    if isinstance(declared, Mapping) and not (isinstance(alias, str) and alias in declared):
        known = ", ".join(map(repr, declared)) or "none"
        raise SearchError(
            f"rerank is {alias!r}. {did_you_mean(alias, declared)}"
            f"PGEMBED_RERANKERS declares: {known}."
        )
    return rerankers.get(alias)


def scores(reranker: Reranker, query: str, passages: Mapping[Key, str]) -> dict[Key, float] | None:
    """Return the scores of the passages that have a word. None: the reranker did not answer."""
    worded = {key: passage for key, passage in passages.items() if passage.strip()}
    if not worded:
        return {}
    found = calls.scores(reranker, query, list(worded.values()))
    return None if found is None else dict(zip(worded, found, strict=True))


def ordered(
    merged: Sequence[tuple[int, Ranked]], scores: Mapping[Key, float]
) -> list[tuple[int, Ranked]]:
    """Return the rows by their scores, best first, and then those without, in their order.

    A row without one scores no more than the last that has one.
    """
    least = min(scores.values(), default=float("inf"))

    def scored(place: tuple[int, Ranked]) -> tuple[int, Ranked]:
        number, one = place
        return number, one._replace(score=scores.get((number, one.key), min(one.score, least)))

    # The sort is stable: on a tie, the order of the fusion stays.
    first = [place for place in merged if (place[0], place[1].key) in scores]
    rest = [place for place in merged if (place[0], place[1].key) not in scores]
    return [*sorted(map(scored, first), key=lambda place: -place[1].score), *map(scored, rest)]


class Calls:
    """The requests to rerankers, and which of these are down."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start without threads. Also called after a fork, which copies no threads."""
        self._lock = threading.Lock()
        self._outages = Outages()
        self._threads: Threads | None = None

    def scores(self, reranker: Reranker, query: str, passages: Sequence[str]) -> list[float] | None:
        """Return the scores within the reranker's time, or None, with the reason in the log."""
        if self._outages.is_resting(reranker):
            return None
        asked = self._ask(reranker, query, passages)
        wait([asked], timeout=reranker.timeout_seconds)
        try:
            if not asked.done():
                raise ProviderTimeout(f"{reranker} did not answer in time.")
            found = asked.result()
        except ProviderError as error:
            self._failed(reranker, error)
            return None
        self._outages.ended(reranker)
        return found

    def warm_up(self) -> None:
        """Load the models of the declared rerankers, in threads. Returns at once."""
        declared: object = conf.current().rerankers
        for alias in declared if isinstance(declared, Mapping) else ():
            self._submit(self._warm_up, alias)

    def _warm_up(self, alias: str) -> None:
        """Runs in a thread. What is declared wrongly is told by the checks, and by searches."""
        with suppress(ImproperlyConfigured):
            self._load(rerankers.get(alias))

    def _load(self, reranker: Reranker) -> None:
        try:
            with answers.provider_errors(reranker):
                reranker.warm_up()
        except ProviderError as error:
            self._failed(reranker, error)

    def _failed(self, reranker: Reranker, error: ProviderError) -> None:
        """Log an error, once per outage. While a reranker is down, let it rest."""
        if self._outages.is_news(reranker, error):
            events.tell(events.NOT_RERANKED, reranker=reranker.alias, error=clean(str(error)))

    def _ask(self, reranker: Reranker, query: str, passages: Sequence[str]) -> Future[list[float]]:
        until = time.monotonic() + reranker.timeout_seconds

        def ask() -> list[float]:
            # It may have waited for a thread until nobody waits for it.
            seconds = until - time.monotonic()
            return reranker.scores(query, passages, timeout_seconds=seconds)

        return self._submit(ask)

    def _submit(self, function: Callable[..., Value], *arguments: object) -> Future[Value]:
        """Run a function in a thread."""
        with self._lock:
            if self._threads is None:
                self._threads = Threads(THREADS, name="pgembed-rerank")
            return self._threads.submit(function, *arguments)


calls = Calls()
os.register_at_fork(after_in_child=calls.begin)
