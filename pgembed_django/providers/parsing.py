"""Parse JSON. With simdjson, if it is installed, long lists of numbers parse much faster."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

try:
    import simdjson
except ImportError:
    simdjson = None  # type: ignore[assignment]

KEPT_BYTES: Final = 2**20
"""A thread only reuses its parser up to this size: the parser keeps about twice as much."""

_own = threading.local()
"""Each thread's parser, reused because its memory takes longer to allocate than the parsing."""


def loads(body: bytes) -> Any:
    """Return a document's value. With simdjson, a list of numbers is an array (float64).

    What simdjson refuses, ``NaN`` for instance, is left to Python's own parser.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is too deep.
    """
    if simdjson is not None:
        with suppress(ValueError, KeyError, RuntimeError):  # all that it refuses with
            return _Document(body).value()
        vars(_own).clear()  # the error may still hold a part of the document
    return json.loads(body)


class _Document:
    """A document that simdjson has parsed."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._root = _parser(len(body)).parse(body)
        self._lists = 0

    def value(self) -> Any:
        """Return its value.

        Raises:
            ValueError: a list within a list of numbers, which simdjson would flatten, or a
                duplicate key, of which it would take the first.
        """
        value = self._value(self._root)
        if self._lists != self._body.count(b"["):
            raise ValueError("There are lists, or strings with brackets, that were not seen.")
        return value

    def _value(self, part: Any) -> Any:
        if isinstance(part, simdjson.Object):
            found = {key: self._value(part[key]) for key in part}
            if len(found) != len(part):
                raise ValueError("A key is there twice.")
            return found
        if not isinstance(part, simdjson.Array):
            return part
        self._lists += 1
        numbers = _numbers(part)
        return [self._value(one) for one in part] if numbers is None else numbers


def _parser(length: int) -> Any:
    """Return a parser. It cannot parse again while anything holds a part of its last document."""
    if length > KEPT_BYTES:
        return simdjson.Parser()
    if not hasattr(_own, "parser"):
        _own.parser = simdjson.Parser()
    return _own.parser


def _numbers(part: Any) -> npt.NDArray[np.float64] | None:
    """Return a list of numbers as an array, or None if it is empty or has other values."""
    try:
        numbers = np.frombuffer(part.as_buffer(of_type="d"), dtype=np.float64)
    except TypeError:
        return None
    return numbers if 0 < len(numbers) == len(part) else None
