"""Check a provider's answer, and normalize its vectors. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pgembed_django.exceptions import ProviderError, ProviderMisconfigured

Vector = npt.NDArray[np.float32]
"""Shape: ``(dimensions,)``. A unit vector."""

Vectors = npt.NDArray[np.float32]
"""Shape: ``(number of texts, dimensions)``."""


ROW = (list, np.ndarray)
"""The types that a vector may have in a parsed answer: see ``parsing.loads``."""

NUMBERS = frozenset((int, float))
"""The types of numbers in a parsed list."""

NO_NUMBERS = "The answer has something other than lists of numbers."


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """A text's vector. ``was_cut``: the text as a whole did not fit the model."""

    vector: Vector = field(repr=False)
    was_cut: bool = False


def from_rows(rows: Sequence[Any], *, dimensions: int) -> Vectors:
    """Return the rows of a JSON answer as a matrix, in order. Checks its shape only.

    A row that is null or empty becomes zeros: the server has no vector for that one text.

    Raises:
        ProviderError: the rows have different widths, or contain something other than numbers.
    """
    widths = {len(row) for row in rows if isinstance(row, ROW) and len(row)}
    if len(widths) > 1:
        raise ProviderError(f"One answer has vectors of different widths: {sorted(widths)}.")
    width = widths.pop() if widths else dimensions
    matrix = np.zeros((len(rows), width), dtype=np.float32)
    # A number like 1e39 is finite as a float64, but becomes inf as a float32.
    with np.errstate(over="ignore"):
        for position, row in enumerate(rows):
            if row is None or (isinstance(row, ROW) and not len(row)):
                continue
            # numpy would also take true, and "1.5". An array has only numbers.
            if not isinstance(row, np.ndarray) and not (
                isinstance(row, list) and NUMBERS.issuperset(map(type, row))
            ):
                raise ProviderError(NO_NUMBERS)
            try:
                matrix[position] = row
            except OverflowError:
                raise ProviderError(NO_NUMBERS) from None  # its message is about the values
    return matrix


def matrix_of(answer: object, *, name: str) -> Vectors:
    """Return the result of ``embed_batch`` as an array. It may be lists or a tensor, for instance.

    Raises:
        ProviderError: it cannot be converted.
    """
    if isinstance(answer, np.ndarray) and answer.dtype.kind == "f":
        return answer
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
    vectors: Vectors, *, count: int, dimensions: int, name: str
) -> tuple[Vectors, list[str | None]]:
    """Return the unit vectors, and for each its fault, or None if it has none.

    A vector with a fault must not be used. The others of its batch may be.

    Raises:
        ProviderError: there is not exactly one vector per text, or they are empty.
        ProviderMisconfigured: their width is not DIMENSIONS.
    """
    if vectors.ndim != 2 or len(vectors) != count:
        answered = len(vectors) if vectors.ndim else 1
        raise ProviderError(f"{name} answered {answered} vectors for {count} texts.")
    if not vectors.shape[1]:
        raise ProviderError(f"{name} answered {count} empty vectors.")
    if vectors.shape[1] != dimensions:
        width = vectors.shape[1]
        raise ProviderMisconfigured(
            f"{name} answered {width} dimensions where DIMENSIONS says {dimensions}: "
            f"set DIMENSIONS to {width} or choose another model."
        )
    # In float64, because squares of large float32 numbers exceed float32.
    wide = vectors.astype(np.float64)
    # The sum is finite if all of its terms are: no sum of float32 numbers exceeds float64.
    finite = np.isfinite(wide.sum(axis=1, keepdims=True))[:, 0]
    wide[~finite] = 0
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    unit = (wide / np.where(norms > 0, norms, 1)).astype(np.float32)
    faults: list[str | None] = [
        None if norm > 0 else "a vector of zeros" if is_finite else "a vector that is not finite"
        for norm, is_finite in zip(norms[:, 0].tolist(), finite.tolist(), strict=True)
    ]
    return unit, faults
