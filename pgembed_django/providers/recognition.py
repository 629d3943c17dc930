"""Recognize the model behind a provider by its vectors of a few fixed texts.

Many servers answer whatever model they are asked for, and tell no digest of it. If one is restarted
with another model of the same width, only its vectors show it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from pgembed_django.exceptions import ProviderError, ProviderMisconfigured, ProviderUnavailable
from pgembed_django.providers import plainly, raising
from pgembed_django.providers.answers import Vector, Vectors

if TYPE_CHECKING:
    from pgembed_django.providers.base import Provider

TEXTS: Final = (
    "The ferry to the island leaves at half past six.",
    "Tomato seedlings need light before they go outside.",
    "A court has ruled that the contract was void.",
    "Why is the index of this table not used?",
    "Der Zug nach Leipzig hat heute zwanzig Minuten Verspätung.",
)
"""Never change these: spaces keep the vectors that their models made of them."""

LEAST_COSINE: Final = 0.99
"""Other batch sizes, devices and precisions stay above it. Other models are far below."""

REMEDY: Final = (
    "Bring the former model back, or embed all rows with the present one, in a new space: "
    "manage.py embed_spaces renew."
)


class AnotherModel(ProviderMisconfigured):
    """The server answers with vectors of another model than a space's."""


class Known(NamedTuple):
    """The vectors that a space's model made of ``TEXTS``, as bytes, and how to call that space."""

    vectors: bytes
    space: str
    facts: str
    """What the server told about its model then."""


class Look(NamedTuple):
    """What the server made of ``TEXTS``, and the spaces whose models are others."""

    vectors: Vectors
    strangers: dict[Known, AnotherModel]


class Canary:
    """What a provider makes of ``TEXTS``, asked again over each new connection, and at times.

    The server behind a connection stays the same, unless there is a proxy in between.
    """

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._seen: WeakKeyDictionary[object, tuple[float, Vectors]] = WeakKeyDictionary()
        self.facts = ""
        """What the server told about its model when a space was to know it."""
        self.recognized_at = float("-inf")
        """When the model was last seen to be that of all spaces that it was compared with."""

    def look(
        self,
        known: Collection[Known],
        *,
        seconds: float,
        made: tuple[str, Vector] | None = None,
    ) -> Look:
        """Compare the model that last answered this thread with those of some spaces.

        Asks the server only if it may be another one than when it was last asked: over a new
        connection, or after ``seconds``. Zero: in any case. ``made``: a text and its vector, by a
        model that is to be known. Also ask what the server tells about it.

        Raises:
            ProviderUnavailable: it cannot be asked now.
        """
        began = self._provider.clock()
        here = self._provider.connection
        before = self._seen_here(seconds)
        vectors = self._ask() if before is None else before
        if not all(is_alike(one, vectors) for one in known):
            vectors = self._ask()  # a single odd answer is no other model
        strange = [one for one in known if not is_alike(one, vectors)]
        if strange or made:
            self.facts = self._facts()
        if made and self._provider.connection is not here:
            text, vector = made
            if float(self._ask([text])[0] @ vector) < LEAST_COSINE:
                raise ProviderUnavailable("The server's model was exchanged before it was known.")
        if before is None and not strange:
            self.recognized_at = began
            if (here := self._provider.connection) is not None:
                self._seen[here] = began, vectors
        return Look(vectors, {one: self._error(one, vectors) for one in strange})

    def _seen_here(self, seconds: float) -> Vectors | None:
        here = self._provider.connection
        at, vectors = self._seen.get(here, (0.0, None)) if here is not None else (0.0, None)
        return vectors if self._provider.clock() - at < seconds else None

    def _ask(self, texts: Sequence[str] = TEXTS) -> Vectors:
        try:
            with raising.provider_errors(self._provider):
                return self._provider.embed_documents(texts)
        except ProviderUnavailable as error:
            # Of no text of the caller's: none of them may have brought the server down.
            raise plainly.as_kind(ProviderUnavailable, error) from error
        except ProviderError as error:
            raise ProviderUnavailable(str(error)) from error

    def _facts(self) -> str:
        try:
            with raising.provider_errors(self._provider):
                return self._provider.model_facts()
        except ProviderError:
            return ""

    def _error(self, known: Known, vectors: Vectors) -> AnotherModel:
        told = [
            f" {when} it told of itself: {facts}."
            for when, facts in (("Then", known.facts), ("Now", self.facts))
            if facts
        ]
        return AnotherModel(
            f"The server behind provider {self._provider.alias!r} has another model than the one "
            f"that made {known.space}: the median cosine of {len(TEXTS)} fixed texts is "
            f"{_cosine(known, vectors):.2f}.{''.join(told)} {REMEDY}"
        )


def is_alike(known: Known, vectors: Vectors) -> bool:
    """Return whether the model of a space may have made these vectors of ``TEXTS``."""
    return _cosine(known, vectors) >= LEAST_COSINE


def _cosine(known: Known, vectors: Vectors) -> float:
    """Return the median cosine of the texts."""
    former = np.frombuffer(known.vectors, dtype="<f4").reshape(vectors.shape)
    return float(np.median((former * vectors).sum(axis=1)))
