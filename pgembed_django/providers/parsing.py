"""Parse JSON. If simdjson is installed, long lists of numbers parse much faster."""

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
"""The largest document for a thread's reused parser, which keeps about twice as much memory."""

_own = threading.local()
"""Each thread's parser. It is reused, because allocating its memory takes longer than parsing."""


def loads(body: bytes) -> Any:
    """Return a document's value. With simdjson, a list of numbers is an array (float64).

    Whatever simdjson rejects, such as ``NaN``, is left to Python's own parser.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    if simdjson is not None:
        with suppress(ValueError, KeyError, RuntimeError):  # all that simdjson raises
            return _Document(body).value()
        vars(_own).clear()  # the error may still refer to a part of the document
    return json.loads(body)


class _Document:
    """A document that simdjson has parsed."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._root = _parser(len(body)).parse(body)
        self._lists = 0

    def value(self) -> Any:
        """Return the document's value.

        Raises:
            ValueError: a list is nested in a list of numbers, which simdjson would flatten, or a
                key is duplicated, and simdjson would take the first.
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
    """Return a parser. It cannot parse while anything refers to a part of its last document."""
    if length > KEPT_BYTES:
        return simdjson.Parser()
    if not hasattr(_own, "parser"):
        _own.parser = simdjson.Parser()
    return _own.parser


def _numbers(part: Any) -> npt.NDArray[np.float64] | None:
    """Return a list of numbers as an array, or None if it is empty or has any other values."""
    try:
        numbers = np.frombuffer(part.as_buffer(of_type="d"), dtype=np.float64)
    except TypeError:
        return None
    return numbers if 0 < len(numbers) == len(part) else None
