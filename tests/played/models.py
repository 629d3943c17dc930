"""Models without weights, which an executor runs in any process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pgembed_django.executors import Answer, Model, Place

ANSWER = 4
"""A vector tells which process has made it, when among its calls, for which place, and a one."""


class Played(Model):
    """Does what its texts say. ``wait PATH``: until there is a writer of that FIFO.

    ``tokenize PATH``: the same, before it is computed.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._computed = 0

    def prepare(self, texts: Sequence[str]) -> Sequence[str]:
        for text in texts:
            match text.split():
                case ["tokenize", path]:
                    Path(path).read_bytes()
        return texts

    def compute(self, texts: Sequence[str]) -> Answer:
        for text in texts:
            match text.split():
                case ["wait", path]:
                    Path(path).read_bytes()
                case ["break"]:
                    raise RuntimeError("the device is gone")
                case ["fail"]:
                    raise ValueError("fail")
                case ["exit"]:
                    os._exit(13)
        self._computed += 1
        row = [os.getpid(), self._computed, self._place.index, 1]
        return Answer(np.array([row] * len(texts), dtype=np.float32))

    def count(self, texts: Sequence[str]) -> Sequence[int | None]:
        return [len(text.split()) for text in texts]

    def is_broken_by(self, error: BaseException) -> bool:
        return "the device is gone" in str(error)


def load(*, place: Place, fault: str = "", fifo: str = "") -> Model:
    """Load the model, unless there is a fault. ``exit``: take the process along.

    ``fifo``: wait until there is a writer of that.
    """
    if fifo:
        Path(fifo).read_bytes()
    if fault == "exit":
        os._exit(13)
    if fault:
        raise OSError(fault)
    return Played(place)
