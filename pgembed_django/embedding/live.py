"""What to work on now: the live spaces of each spec, and what a person has paused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from pgembed_django import spaces
from pgembed_django.models import Space
from pgembed_django.queue import jobs
from pgembed_django.queue.jobs import Paused
from pgembed_django.specs import Spec

READ_SECONDS = 5.0
"""How long a worker may miss what others have changed."""


class Live:
    """The live spaces and pauses as last read. Iterates over the spaces."""

    def __init__(
        self,
        specs: Mapping[str, Spec],
        *,
        using: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.specs = specs
        self.paused = Paused({}, {})
        self._using = using
        self._clock = clock
        self._spaces: Mapping[str, Sequence[Space]] = {}
        self._read_at = float("-inf")

    def __iter__(self) -> Iterator[Space]:
        return chain.from_iterable(self._spaces.values())

    def of(self, spec: Spec) -> Sequence[Space]:
        """Return the spaces to plan a spec's units for, the active one first."""
        return self._spaces.get(spec.key, ())

    def read_if_old(self) -> bool:
        """Read again after a while. Return whether that was done."""
        if self._clock() - self._read_at < READ_SECONDS:
            return False
        self._spaces = spaces.live_of(self.specs.values(), using=self._using)
        self.paused = jobs.paused(using=self._using)
        self._read_at = self._clock()
        return True

    def outdate(self) -> None:
        """Read again next round: a space was opened after some units were planned."""
        self._read_at = float("-inf")
