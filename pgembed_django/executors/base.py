"""The public protocol of executors, which run a model that no server serves: what to subclass.

No database, no settings. An executor loads its model by a recipe, as models cannot be pickled.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from django.utils.module_loading import import_string

from pgembed_django.core.options import Options
from pgembed_django.exceptions import ProviderError, ProviderMisconfigured

Task = Literal["compute", "count"]

RATE_SECONDS: Final = 60.0
"""Over how long the rate of an executor is averaged."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which of several processes or actors a model is loaded for."""

    index: int = 0
    count: int = 1
    """How many there are on one machine, which share its cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a loaded model tells about itself, and about what it runs on."""

    device: str = "cpu"
    """As its library names it, such as ``cuda:0``."""
    hardware: str = ""
    """What people call the device, such as the name of a card."""
    devices: int = 1
    """How many devices of this kind the machine has: each can have a process of its own."""
    dtype: str = "float32"
    threads: int | None = None
    max_tokens: int | None = None
    """The length of its context. None: any text fits."""
    batch_size: int = 256
    """How many texts a request should have to keep the device busy, at most."""
    batch_tokens: int | None = None
    """The same in tokens."""
    start_seconds: float = 0.0
    """How long it took to load it, with its libraries. The executor measures that."""


class Answer(NamedTuple):
    """What a model has made of some texts."""

    values: npt.NDArray[np.float32]
    """A row per text, in the same order. Zeros for those that are too long. Empty if all are."""
    too_long: Sequence[int] = ()
    """The indexes of texts that do not fit its context, and were left out."""


class Model(ABC):
    """A loaded model. A call passes through three stages, each of them for one call at a time.

    Stages of different calls run beside each other in threads, so that the device need not wait
    for Python.
    """

    facts: Facts = Facts()

    def prepare(self, texts: Sequence[Any]) -> Any:
        """Tokenize."""
        return texts

    @abstractmethod
    def compute(self, prepared: Any) -> Any:
        """Run the model over what ``prepare`` returned. It need not wait for the device's end."""

    def finish(self, computed: Any) -> Answer:
        """Return the answer, as soon as the device has ended."""
        answer: Answer = computed
        return answer

    def count(self, texts: Sequence[str]) -> Sequence[int | None]:
        """Return how many tokens each text has, or None if that cannot be told."""
        return [None] * len(texts)

    def is_broken_by(self, error: BaseException) -> bool:
        """Return whether its device cannot be used any more, so that it must be loaded again."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to load a model, in any process. It can be pickled."""

    load: str
    """The dotted path of a function. It takes ``arguments`` and ``place``, and returns a model."""
    model: str
    """Its name, for people."""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def loaded(self, place: Place) -> Model:
        """Load the model.

        Raises:
            ProviderMisconfigured: it cannot be loaded.
        """
        try:
            model: Model = import_string(self.load)(**self.arguments, place=place)
        except ProviderError:
            raise
        except Exception as error:
            raise ProviderMisconfigured(
                f"The model {self.model!r} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        return model

    def failed(self, error: BaseException) -> ProviderError:
        """Return what to raise instead of an error of the model's code."""
        if isinstance(error, ProviderError):
            return error
        # For instance, the device is out of memory, or the tokenizer rejects a text.
        # No message and no chaining: the message may contain the text.
        return ProviderError(f"The model {self.model!r} failed with {type(error).__name__}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What an executor is at, for people."""

    kind: str
    running: int = 0
    """How many processes or actors have the model loaded."""
    wanted: int = 1
    devices: Sequence[str] = ()
    queued: int = 0
    """How many requests wait for one of them, or are with one."""
    texts_per_second: float = 0.0
    """Over the last minute."""
    start_seconds: float = 0.0


class Executor(Options, ABC):
    """Runs one model somewhere. Threads share it. It starts when it is first used.

    A subclass's options are keywords of ``__init__``. In EXECUTOR, beside BACKEND, they are in
    capitals.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.rate = Rate()

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many calls keep all of it busy. A worker has that many requests in flight."""

    @abstractmethod
    def start(self) -> Facts:
        """Return the model's facts. Loads it if it is not loaded, and waits for that.

        Raises:
            ProviderMisconfigured: it cannot be loaded.
            ProviderUnavailable: what is to load it cannot be reached, or died.
        """

    @abstractmethod
    def call(
        self,
        task: Task,
        texts: Sequence[Any],
        *,
        is_query: bool = False,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Have the model do something with some texts: see ``compute`` and ``count``.

        ``is_query``: before all others that wait.

        Raises:
            ProviderLost: what ran the model died meanwhile. The texts may be the cause.
            ProviderTimeout: there was no answer within ``timeout_seconds``.
            ProviderError: the model failed, or as ``start``.
        """

    @abstractmethod
    def status(self) -> Status:
        """Return what it is at. Does not block."""

    def close(self) -> None:
        """End what was started. It is not used again."""

    def compute(
        self,
        texts: Sequence[Any],
        *,
        is_query: bool = False,
        timeout_seconds: float | None = None,
    ) -> Answer:
        """Return what the model makes of some texts. Raises as ``call``."""
        answer: Answer = self.call(
            "compute", texts, is_query=is_query, timeout_seconds=timeout_seconds
        )
        self.rate.add(len(texts))
        return answer

    def count(self, texts: Sequence[str]) -> Sequence[int | None]:
        """Return how many tokens texts have, as far as that can be told. Raises as ``call``."""
        counts: Sequence[int | None] = self.call("count", texts)
        return counts


class Rate:
    """How many texts a second, over the last minute. Threads share it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._added: deque[tuple[float, int]] = deque()

    def add(self, count: int) -> None:
        """Count some texts."""
        with self._lock:
            self._added.append((self._clock(), count))
            self._forget()

    def per_second(self) -> float:
        """Return the rate. A minute is the least that it is averaged over."""
        with self._lock:
            self._forget()
            return sum(count for _, count in self._added) / RATE_SECONDS

    def _forget(self) -> None:
        since = self._clock() - RATE_SECONDS
        while self._added and self._added[0][0] < since:
            self._added.popleft()
