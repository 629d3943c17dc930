"""What a provider answers: parsed, checked, and its errors converted to ours.

A server's JSON may be anything, and a project's own provider may return or raise anything.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pgembed_django.core import faults
from pgembed_django.core.text import clean
from pgembed_django.core.threads import OurThread
from pgembed_django.exceptions import ProviderError, ProviderMisconfigured
from pgembed_django.providers import errors

if TYPE_CHECKING:
    from pgembed_django.providers.base import Provider
    from pgembed_django.rerankers.base import Reranker

try:
    import simdjson
except ImportError:
    simdjson = None  # type: ignore[assignment]

Vector = npt.NDArray[np.float32]
"""Shape: ``(dimensions,)``. A unit vector."""

Vectors = npt.NDArray[np.float32]
"""Shape: ``(number of texts, dimensions)``."""

Fault = str | ProviderError | None
"""What is wrong with one vector of an answer. None: nothing. Otherwise it must not be used."""

ROW = (list, np.ndarray)
"""The types that a vector may have in a parsed answer: see ``loads``."""

NUMBERS = frozenset((int, float))
"""The types of numbers in a parsed list."""

NO_NUMBERS = "The answer has something other than lists of numbers."

_own = threading.local()
"""Each thread's parser."""


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """A text's vector. ``was_cut``: the text as a whole did not fit the model."""

    vector: Vector = field(repr=False)
    was_cut: bool = False


def loads(body: bytes) -> Any:
    """Return a JSON document's value. With simdjson, a list of numbers is an array (float64).

    Whatever simdjson rejects, such as ``NaN``, is left to Python's own parser.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    if simdjson is not None:
        with suppress(ValueError, KeyError, RuntimeError):  # all that simdjson raises
            # Reused, as allocating its memory takes longer than parsing. It cannot parse while
            # anything refers to a part of its last document.
            parser = _own.parser = getattr(_own, "parser", None) or simdjson.Parser()
            return _with_arrays(parser.parse(body))
        vars(_own).clear()  # the error may still refer to a part of the document
    return json.loads(body)


def _with_arrays(part: Any) -> Any:
    if isinstance(part, simdjson.Object):
        return {key: _with_arrays(part[key]) for key in part}
    if not isinstance(part, simdjson.Array):
        return part
    # simdjson would flatten lists in a list.
    if len(part) and type(part[0]) in NUMBERS:
        with suppress(TypeError):  # it has something other than numbers
            numbers = np.frombuffer(part.as_buffer(of_type="d"), dtype=np.float64)
            if len(numbers) == len(part):
                return numbers
    return [_with_arrays(one) for one in part]


def from_rows(rows: Sequence[Any], *, dimensions: int) -> Vectors:
    """Return the rows of a JSON answer as a matrix, in order. Checks its shape only.

    A row that is null or empty becomes zeros: the server has no vector for that one text.

    Raises:
        ProviderError: the rows have different widths, or contain something other than numbers.
    """
    given = [[] if row is None else row for row in rows]
    for row in given:
        # numpy would also take true, and "1.5". An array has only numbers.
        is_list = isinstance(row, list) and NUMBERS.issuperset(map(type, row))
        if not is_list and not isinstance(row, np.ndarray):
            raise ProviderError(NO_NUMBERS)
    widths = {len(row) for row in given if len(row)} or {dimensions}
    if len(widths) > 1:
        raise ProviderError(f"One answer has vectors of different widths: {sorted(widths)}.")
    [width] = widths
    # A number like 1e39 is finite as a float64, but becomes inf as a float32.
    with np.errstate(over="ignore"):
        try:
            full = [row if len(row) else np.zeros(width) for row in given]
            return np.array(full, dtype=np.float32).reshape(len(rows), width)
        except OverflowError:
            raise ProviderError(NO_NUMBERS) from None  # its message is about the values


def matrix_of(answer: object, *, name: str) -> Vectors:
    """Return the result of ``embed_batch`` as an array. It may be lists or a tensor, for instance.

    Raises:
        ProviderError: it cannot be converted.
    """
    with suppress(TypeError, ValueError, OverflowError), np.errstate(over="ignore"):
        found = np.asarray(answer)
        if found.ndim and found.dtype.kind not in "bcSU":  # no booleans, no strings
            matrix: Vectors = found.astype(np.float32)
            return matrix
    # Not chained: numpy's message quotes the values.
    raise ProviderError(
        f"{name}: embed_batch() returned {type(answer).__name__}. It must return an array of "
        "numbers, one row per text."
    )


def checked(
    answer: object, *, count: int, dimensions: int, name: str, truncates: bool = False
) -> tuple[Vectors, list[Fault]]:
    """Return the unit vectors of an answer, and for each its fault, or None if it has none.

    A vector with a fault must not be used. The others of its batch may be. ``truncates``: of wider
    vectors, use only the first DIMENSIONS numbers.

    Raises:
        ProviderError: there is not exactly one vector of numbers per text, or they are empty.
        ProviderMisconfigured: their width is not DIMENSIONS.
    """
    vectors = matrix_of(answer, name=name)
    if vectors.ndim != 2 or len(vectors) != count:
        answered = len(vectors) if vectors.ndim else 1
        raise ProviderError(f"{name} answered {answered} vectors for {count} texts.")
    width = vectors.shape[1]
    if not width:
        raise ProviderError(f"{name} answered {count} empty vectors.")
    if width < dimensions or (width > dimensions and not truncates):
        most = f"{width} or less" if truncates else f"{width}"
        cut = ", set truncate_dimensions if its vectors may be cut" if width > dimensions else ""
        raise ProviderMisconfigured(
            f"{name} answered {width} dimensions where DIMENSIONS says {dimensions}: "
            f"set DIMENSIONS to {most}{cut}, or choose another model."
        )
    # In float64, because squares of large float32 numbers exceed float32.
    wide = vectors[:, :dimensions].astype(np.float64)
    is_finite = np.isfinite(wide).all(axis=1)
    wide[~is_finite] = 0
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    found: list[Fault] = [
        None if norm > 0 else "a vector of zeros" if finite else "a vector that is not finite"
        for norm, finite in zip(norms[:, 0].tolist(), is_finite.tolist(), strict=True)
    ]
    return (wide / np.where(norms > 0, norms, 1)).astype(np.float32), found


@contextmanager
def provider_errors(provider: Provider | Reranker, *, texts: Sequence[str] = ()) -> Iterator[None]:
    """Convert other errors to ``ProviderError``: a project's own class may raise anything.

    Its messages quote none of the ``texts``.
    """
    try:
        yield
    except ProviderError as error:
        message = faults.message(error)
        if message is None:
            # Of the same kind, so that an outage stays one.
            kind = next(k for k in type(error).__mro__ if k.__module__ == ProviderError.__module__)
            raise kind(f"{provider} raised {faults.name(error)}, which has no message.") from None
        if texts and not provider.quotes_no_text:
            error.args = (errors.without_texts(message[: errors.READ], texts),)
        raise
    except BaseException as error:
        if _is_interruption(error):
            raise
        # No message and no chaining: the message may contain the text.
        raise ProviderError(f"{provider} raised {faults.name(error)}.") from None


def counted(provider: Provider, text: str) -> int | None:
    """Return a provider's token count, or None if it cannot count, or fails."""
    with suppress(ProviderError), provider_errors(provider):
        count = provider.count_tokens(text)
        return None if count is None else index(count)
    return None


def digest(provider: Provider) -> str | None:
    """Return a model's digest in a form that can be stored. Also sets ``told_digest``.

    Raises:
        ProviderError: the digest is not a string, or ``model_digest`` raised.
    """
    told = provider.model_digest()
    if not isinstance(told, str | None):
        # Not str(told): it may contain an address, and so be a new model in each process.
        raise ProviderError(
            f"{provider}: model_digest() returned {type(told).__name__}. It must return a string "
            "or None."
        )
    provider.told_digest = told and clean(told)
    return provider.told_digest


def _is_interruption(error: BaseException) -> bool:
    """Return whether something ends what this thread is doing, such as a search in a web process.

    In a thread of ours, which nothing else knows, an exit is the provider's own.
    """
    if isinstance(threading.current_thread(), OurThread):
        return False
    is_an_end = not isinstance(error, Exception) and type(error).__module__ != faults.PANICS
    return is_an_end or faults.is_interruption(error)
