"""Embed search queries: within a deadline, and the same text only once.

The provider is called in a thread, because a model that runs in this process cannot be timed out.
A vector that arrives after the deadline is kept for the next search. The deadline does not include
the time that it takes to load such a model, which the first searches of a process wait for.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import datetime
from typing import NamedTuple, TypeVar

from django.db import connections as databases
from django.db import router

from pgembed_django import conf, events, spaces
from pgembed_django.core.text import clean
from pgembed_django.core.threads import Threads
from pgembed_django.declaration import specs
from pgembed_django.exceptions import (
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
)
from pgembed_django.models import Space
from pgembed_django.providers import answers, connections, recognition
from pgembed_django.providers.base import Vector
from pgembed_django.providers.recognition import AnotherModel, Known
from pgembed_django.retrieval.outages import Outages

Value = TypeVar("Value")

MOST_KEPT = 256
THREADS = 8

LOADING_SECONDS = 10.0
"""How long after a model began to load searches wait for it. Later ones go by words at once."""

Key = tuple[str, datetime | None, str]
"""What a vector depends on: a space's fingerprint, when its model was last exchanged, and a text.

Just before that, another model may have answered.
"""

Server = tuple[str, str]
"""Which server is asked: the alias of a provider, and the fingerprint of one of its spaces.

Two aliases of one model make the same vectors, but one may be down while the other is up.
"""


class Loading(NamedTuple):
    """The loading of a model into this process. A server's model takes no time.

    ``ended`` raises ``ProviderError`` if the model cannot be loaded.
    """

    began: float
    ended: Future[None]

    @property
    def is_over(self) -> bool:
        return self.ended.done()

    def join(self, space: Space) -> None:
        """Wait until it is over, at most ``LOADING_SECONDS`` after it began.

        Raises:
            ProviderError: it is not over yet, or has failed.
        """
        wait([self.ended], timeout=max(self.began + LOADING_SECONDS - time.monotonic(), 0.0))
        if not self.is_over:
            raise ProviderUnavailable(f"{space.model} is still being loaded.")
        self.ended.result()


class Pending(NamedTuple):
    """The vector of a query, which may not have arrived yet.

    ``answer`` is a ``Loading`` if the model was being loaded when it was asked for.
    """

    space: Space
    text: str
    answer: Future[Vector] | Loading
    until: float

    @property
    def is_loading(self) -> bool:
        """Whether the model is still being loaded."""
        return isinstance(self.answer, Loading) and not self.answer.is_over

    def is_answered(self, seconds: float) -> bool:
        """Return whether the answer has arrived, after waiting for at most ``seconds``."""
        if isinstance(self.answer, Loading):
            return False
        if not self.answer.done():
            wait([self.answer], timeout=seconds)
        return self.answer.done()

    def vector(self) -> Vector:
        """Return the vector, at most ``PGEMBED_QUERY_SECONDS`` after a loaded model was asked.

        Raises:
            ProviderError: there is none, for whatever reason. The message may be shown to people.
        """
        if isinstance(self.answer, Loading):
            self.answer.join(self.space)
            return vectors.ask(self.space, self.text).vector()
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
        self._outages = Outages()
        self._loadings: dict[Server, Loading] = {}
        self._threads: Threads | None = None

    def ask(self, space: Space, text: str) -> Pending:
        """Ask a space's provider for the vector of a query, unless it is cached."""
        seconds: float = conf.usable("query_seconds")
        return Pending(space, text, self._answer(space, text, seconds), time.monotonic() + seconds)

    def warm_up(self) -> None:
        """Load the models that searches use, in threads. Returns at once."""
        with self._lock:
            self._submit(self._warm_up)

    def _answer(self, space: Space, text: str, seconds: float) -> Future[Vector] | Loading:
        """Return the cached vector, the request already in flight, or a new one.

        While the model is being loaded, nothing is requested, so that no thread waits for it.
        """
        key = _key(space, text)
        server = _server(space)
        known = None if key in self._kept else self._known_of(space)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return _answered(self._kept[key])
            if self._outages.is_resting(server):
                return _failed(ProviderUnavailable(f"{space.model} did not answer a moment ago."))
            if (server, text) in self._coming:
                return self._coming[server, text]
            if not seconds:
                return _failed(ProviderUnavailable("PGEMBED_QUERY_SECONDS is 0."))
            loading = self._loading(space)
            if not loading.is_over:
                return loading
            answer = self._submit(self._embed, space, known, text, seconds)
            self._coming[server, text] = answer
        answer.add_done_callback(lambda done: self._arrived(space, text, done))
        return answer

    def _submit(self, function: Callable[..., Value], *arguments: object) -> Future[Value]:
        """Run a function in a thread. The caller has the lock."""
        if self._threads is None:
            self._threads = Threads(THREADS, name="pgembed-query")
        return self._threads.submit(function, *arguments)

    def _loading(self, space: Space) -> Loading:
        """Begin to load a space's model, unless it is loaded. The caller has the lock."""
        server = _server(space)
        known = self._loadings.get(server)
        if known is None or (known.is_over and known.ended.exception()):
            known = Loading(time.monotonic(), self._submit(self._load, space))
            self._loadings[server] = known
        return known

    def _load(self, space: Space) -> None:
        """Load a space's model. Runs in a thread."""
        provider = spaces.provider_of(space)
        try:
            with answers.provider_errors(provider):
                provider.warm_up()
        except ProviderError as error:
            self.failed(space, error)
            raise

    def _warm_up(self) -> None:
        """Runs in a thread. If the database is away, the first search loads the model."""
        try:
            every = (
                spaces.active(spec, using=router.db_for_read(spec.model)) for spec in specs.all()
            )
            active = {_server(space): space for space in every if space}
        finally:
            databases.close_all()
        with self._lock:
            for space in active.values():
                self._loading(space)

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
            self._loadings.clear()
        self._outages.clear()

    def failed(self, space: Space, error: ProviderError) -> None:
        """Log an error, once per outage. While a provider is down, let it rest."""
        if self._outages.is_news(_server(space), error):
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
                self._outages.ended(server)
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
    return Pending(space, "", _answered(vector), 0.0)


def _answered(vector: Vector) -> Future[Vector]:
    future: Future[Vector] = Future()
    future.set_result(vector)
    return future


def _failed(error: Exception) -> Future[Vector]:
    future: Future[Vector] = Future()
    future.set_exception(error)
    return future
