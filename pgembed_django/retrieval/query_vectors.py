"""Embed search queries: within a deadline, and the same text only once.

The provider is called in a thread, because a model that runs in this process cannot be timed out.
A vector that arrives after the deadline is kept for the next search.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, wait
from datetime import datetime
from typing import NamedTuple

from pgembed_django import conf, events, spaces
from pgembed_django.core.text import clean
from pgembed_django.core.threads import Threads
from pgembed_django.exceptions import (
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
)
from pgembed_django.models import Space
from pgembed_django.providers import answers, connections, recognition
from pgembed_django.providers.base import Vector
from pgembed_django.providers.recognition import AnotherModel, Known

MOST_KEPT = 256
THREADS = 8
REST_SECONDS = 5.0
"""How long not to ask a provider that did not answer, so that searches do not wait for it."""

Key = tuple[str, datetime | None, str]
"""What a vector depends on: a space's fingerprint, when its model was last exchanged, and a text.

Just before that, another model may have answered.
"""

Server = tuple[str, str]
"""Which server is asked: the alias of a provider, and the fingerprint of one of its spaces.

Two aliases of one model make the same vectors, but one may be down while the other is up.
"""


class Pending(NamedTuple):
    """The vector of a query, which may not have arrived yet."""

    space: Space
    answer: Future[Vector]
    until: float

    def is_answered(self, seconds: float) -> bool:
        """Return whether the answer has arrived, after waiting for at most ``seconds``."""
        if not self.answer.done():
            wait([self.answer], timeout=seconds)
        return self.answer.done()

    def vector(self) -> Vector:
        """Return the vector, at most ``PGEMBED_QUERY_SECONDS`` after it was asked for.

        Raises:
            ProviderError: there is none, for whatever reason. The message may be shown to people.
        """
        if not self.is_answered(max(self.until - time.monotonic(), 0.0)):
            error = ProviderTimeout(f"{self.space.model} did not answer in time.")
            vectors.failed(self.space, error)
            raise error
        return self.answer.result()


class QueryVectors:
    """Caches the vectors of this process's latest queries.

    Searches for the same text at the same time share one request.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start empty and without threads. Also called after a fork, which copies no threads."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Vector] = OrderedDict()
        self._known: dict[tuple[str | None, int], Known] = {}
        self._coming: dict[tuple[Server, str], Future[Vector]] = {}
        self._resting: dict[Server, float] = {}
        self._threads: Threads | None = None

    def ask(self, space: Space, text: str) -> Pending:
        """Ask a space's provider for the vector of a query, unless it is cached."""
        seconds: float = conf.usable("query_seconds")
        return Pending(space, self._answer(space, text, seconds), time.monotonic() + seconds)

    def _answer(self, space: Space, text: str, seconds: float) -> Future[Vector]:
        """Return the cached vector, the request already in flight, or a new one."""
        key = _key(space, text)
        server = _server(space)
        known = None if key in self._kept else self._known_of(space)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return _answered(self._kept[key])
            if self._resting.get(server, 0.0) > time.monotonic():
                return _failed(ProviderUnavailable(f"{space.model} did not answer a moment ago."))
            if (server, text) in self._coming:
                return self._coming[server, text]
            if not seconds:
                return _failed(ProviderUnavailable("PGEMBED_QUERY_SECONDS is 0."))
            if self._threads is None:
                self._threads = Threads(THREADS, name="pgembed-query")
            answer = self._threads.submit(self._embed, space, known, text, seconds)
            self._coming[server, text] = answer
        answer.add_done_callback(lambda done: self._arrived(space, text, done))
        return answer

    def _known_of(self, space: Space) -> Known | None:
        """Return what a space's model is recognized by. It is read once, since it never changes."""
        place = space._state.db, space.pk
        if place not in self._known and (known := spaces.known_of(space)):
            self._known[place] = known
        return self._known.get(place)

    def clear(self) -> None:
        """Forget all vectors, and which providers did not answer."""
        with self._lock:
            self._kept.clear()
            self._coming.clear()
            self._resting.clear()

    def failed(self, space: Space, error: ProviderError) -> None:
        """Log an error, once per outage. While a provider is down, let it rest."""
        if isinstance(error, ProviderUnavailable):
            server, now = _server(space), time.monotonic()
            with self._lock:
                is_known = self._resting.get(server, 0.0) > now
                self._resting[server] = now + REST_SECONDS
            if is_known:
                return
        message = clean(str(error))
        events.tell(events.QUERY_NOT_EMBEDDED, model=space.model, error=message)

    def _embed(self, space: Space, known: Known | None, text: str, seconds: float) -> Vector:
        """Embed a query, and see whether the model is the space's. Runs in a thread."""
        try:
            return self._embedded(space, known, text, seconds)
        except ProviderError as error:
            self.failed(space, error)
            raise

    def _embedded(self, space: Space, known: Known | None, text: str, seconds: float) -> Vector:
        spaces.ask_for_weights([space])
        provider = spaces.provider_of_texts(space)
        # A user's class may override embed_query, and raise or return anything.
        with answers.provider_errors(provider):
            found = provider.embed_query(text, timeout_seconds=seconds)
            unit, [fault] = provider.check([found], count=1)
        if fault:
            raise ProviderError(f"{provider} answered {fault} for the query.")
        if known is not None:
            # Each of its texts may take as long as the query.
            with connections.within(seconds * len(recognition.TEXTS)):
                look = provider.canary.look([known], seconds=conf.usable("canary_seconds"))
            if known in look.strangers:
                raise look.strangers[known]
        vector: Vector = unit[0]
        return vector

    def _arrived(self, space: Space, text: str, done: Future[Vector]) -> None:
        """Cache a vector. Runs in a thread."""
        server = _server(space)
        with self._lock:
            if self._coming.get((server, text)) is not done:
                return  # it was asked for before ``clear`` was called
            del self._coming[server, text]
            if done.exception() is None:
                self._resting.pop(server, None)
                self._kept[_key(space, text)] = done.result()
                while len(self._kept) > MOST_KEPT:
                    self._kept.popitem(last=False)
            elif isinstance(done.exception(), AnotherModel):
                self._kept.clear()  # some may be of that one


vectors = QueryVectors()
os.register_at_fork(after_in_child=vectors.begin)


def _server(space: Space) -> Server:
    return space.provider, space.fingerprint


def _key(space: Space, text: str) -> Key:
    return space.fingerprint, space.exchanged_at, text


def known(space: Space, vector: Vector) -> Pending:
    """Return a ``Pending`` that already has its vector."""
    return Pending(space, _answered(vector), 0.0)


def _answered(vector: Vector) -> Future[Vector]:
    future: Future[Vector] = Future()
    future.set_result(vector)
    return future


def _failed(error: Exception) -> Future[Vector]:
    future: Future[Vector] = Future()
    future.set_exception(error)
    return future
