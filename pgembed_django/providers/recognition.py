"""What a provider finds out about the model behind it: whether it is the same, where it cuts texts.

Many servers answer whatever model they are asked for, and tell no digest of it. If one is restarted
with another model of the same width, only its vectors show it, those of a few fixed texts.

Some servers cut a text and answer all the same: infinity, and Ollama's ``/v1``. A text that is
longer than the model's context has the same vector whatever its end is.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import cycle, islice
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from pgembed_django.exceptions import (
    InputTooLong,
    ProviderError,
    ProviderMisconfigured,
    ProviderTimeout,
    ProviderUnavailable,
)
from pgembed_django.providers import answers, errors
from pgembed_django.providers.answers import Vector, Vectors
from pgembed_django.providers.batching import as_kind, fitting_one_request

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
        at, before = self._seen.get(here, (0.0, None)) if here is not None else (0.0, None)
        if began - at >= seconds:
            before = None
        vectors = self._ask() if before is None else before
        if not all(is_alike(one, vectors) for one in known):
            vectors = self._ask()  # a single odd answer is no other model
        strange = [one for one in known if not is_alike(one, vectors)]
        if strange or made:
            self.facts = ""
            with suppress(ProviderError), answers.provider_errors(self._provider):
                self.facts = self._provider.model_facts()
        if made and self._provider.connection is not here:
            text, vector = made
            if float(self._ask([text])[0] @ vector) < LEAST_COSINE:
                raise ProviderUnavailable("The server's model was exchanged before it was known.")
        if before is None and not strange:
            self.recognized_at = began
            if (here := self._provider.connection) is not None:
                self._seen[here] = began, vectors
        return Look(vectors, {one: self._error(one, vectors) for one in strange})

    def _ask(self, texts: Sequence[str] = TEXTS) -> Vectors:
        try:
            with answers.provider_errors(self._provider):
                return self._provider.embed_documents(texts)
        except ProviderUnavailable as error:
            # Of no text of the caller's: none of them may have brought the server down.
            raise as_kind(ProviderUnavailable, error) from error
        except ProviderError as error:
            raise ProviderUnavailable(str(error)) from error

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


# Of words that are one token each in any vocabulary that knows English.
PLAIN: Final = "the man in this house has one book and we see how it is when you go there"
STRANGE: Final = "ice law red dog gold ship rain king sugar bank snow iron fish army silk road"

PLAIN_WORD: Final = re.compile(r"(?<!\w)[A-Za-z\u00c0-\u024f][a-z\u00df-\u024f]*(?!\w)")
SINGLE_SPACE: Final = re.compile(r"(?<!\s)\s(?!\s)")

SHORT: Final = 40
"""Any model takes as many tokens, so that short texts cost no request."""

LONG: Final = 2**15
"""Look no further. Longer texts are each asked about."""

SAME: Final = 0.9999
"""The cosine from which on two vectors are the same but for rounding."""

RECHECK_SECONDS: Final = 3600.0
"""How long to remember a context: the server may be started again with a smaller one."""

MAX_OUTAGES: Final = 3
"""After so many outages in a row, our own texts may be what brings the server down."""


class Context:
    """How many tokens a provider's server has been seen to take as a whole. Threads share it."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._lock = threading.Lock()
        self._outages = 0
        self.refuses = False
        """Whether it has refused a text for its tokens: then it cuts none."""
        self._forget()

    def _forget(self) -> None:
        self.tokens = SHORT
        self.is_limit = False
        """Whether it cuts what has more."""
        self._until = self._provider.clock() + RECHECK_SECONDS

    def reach(self, tokens: int) -> None:
        """Find out whether as many tokens are taken, unless it is known.

        Raises:
            ProviderUnavailable: the server cannot be asked now.
        """
        with self._lock:
            if self._provider.clock() >= self._until:
                self._forget()
            low = high = self.tokens
            if self.is_limit or self.refuses or min(tokens, LONG) <= low:
                return
            while high < min(tokens, LONG):
                high *= 2
            if not self._cuts(high):
                self.tokens = high
                return
            if self._cuts(1):
                self.tokens = LONG  # it has one vector for all texts, as fakes have
                return
            while high - low > max(1, low // 16):
                middle = (low + high) // 2
                low, high = (low, middle) if self._cuts(middle) else (middle, high)
            self.tokens, self.is_limit = low, True

    def cut(self, texts: Sequence[str], vectors: Vectors) -> list[int]:
        """Return the indexes of the texts that were cut, according to their vectors.

        Asks the server about those that may be too long.

        Raises:
            ProviderUnavailable: it cannot be asked now.
        """
        needed = list(map(most_tokens, texts))
        self.reach(max(needed, default=0))
        todo = [index for index, most in enumerate(needed) if most > self.tokens]
        found = []
        while todo and not self.refuses:
            others = [texts[index][:-1] + ending(needed[index]) for index in todo]
            fitting = fitting_one_request(self._provider, others)
            made = self._answers(others[:fitting])
            found += [
                index
                for index, answer in zip(todo, made, strict=False)
                if answer is not None and float(answer @ vectors[index]) > SAME
            ]
            del todo[:fitting]
        self._outages = 0
        return found

    def refused(self, error: InputTooLong) -> None:
        """Note that it has refused a text. A limit in characters is not the model's context."""
        self.refuses = self.refuses or not errors.is_of_characters(str(error))

    def refusal(self) -> InputTooLong:
        """Return what a server that cuts nothing would have answered."""
        return InputTooLong(f"The server cuts texts silently: its context is {self.tokens} tokens.")

    def __str__(self) -> str:
        if self.refuses:
            return "longer texts are refused"
        if self.is_limit:
            return f"{self.tokens} tokens, and what is longer is cut silently"
        return f"at least {self.tokens} tokens"

    def _cuts(self, tokens: int) -> bool:
        """Return whether a text of as many tokens fills the context, or more than that."""
        text = words(PLAIN, tokens)
        [one] = self._answers([text])
        if one is None:
            return False
        [other] = self._answers([text + ending(tokens)])
        return other is not None and float(one @ other) > SAME

    def _answers(self, texts: Sequence[str]) -> list[Vector | None]:
        """Return the vectors of some texts, or None for each that is refused: not silently."""
        try:
            vectors, faults = self._provider.answer(texts)
        except ProviderTimeout:
            return [None] * len(texts)  # it is longer than the caller's
        except ProviderUnavailable as error:
            self._outages += 1
            if self._outages > MAX_OUTAGES:
                return [None] * len(texts)
            # No text of the caller's is in doubt because of it.
            raise as_kind(ProviderUnavailable, error) from error
        except ProviderError as error:
            if isinstance(error, InputTooLong):
                self.refused(error)
            return [None] * len(texts)
        return [None if fault else one for one, fault in zip(vectors, faults, strict=True)]


def most_tokens(text: str) -> int:
    """Return how many tokens a text may have in a vocabulary that hardly knows its language.

    Of anything but plain words, such as hexadecimal digits, each byte may be one.
    """
    plain = PLAIN_WORD.findall(text)
    known = sum(-(-len(word) // 4) * 5 + 2 * (len(word.encode()) - len(word)) for word in plain)
    others = SINGLE_SPACE.sub("", PLAIN_WORD.sub("", text))
    return -(-known // 4) + len(others.encode())


def ending(tokens: int) -> str:
    """Return another end for a text of that many tokens.

    An eighth of them, and a few, so that it is noticed where a vector is the mean of all tokens.
    """
    return " " + words(STRANGE, 8 + tokens // 8)


def words(text: str, count: int) -> str:
    """Return as many words as ``count``, those of ``text`` in turn."""
    return " ".join(islice(cycle(text.split()), count))
