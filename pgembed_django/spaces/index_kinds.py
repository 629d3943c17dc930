"""The kinds of vector index, and the choice of one for a space."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pgembed_django import conf
from pgembed_django.models import Space

AUTO = "auto"


class Kind(NamedTuple):
    """A kind of HNSW index. ``widest``: the most dimensions that pgvector can index with it."""

    name: str
    widest: int
    expression: str
    operators: str
    distance: str
    """The operator that the index is ordered by."""
    spread: int
    """How many times as many chunks to fetch from the index as are wanted.

    If an index stores less than the full vectors, its order is approximate. So chunks from it are
    ranked again by exact distance.
    """


KINDS = {
    kind.name: kind
    for kind in (
        Kind("vector", 2000, "{column}::vector({width})", "vector_cosine_ops", "<=>", 1),
        Kind("halfvec", 4000, "{column}::halfvec({width})", "halfvec_cosine_ops", "<=>", 2),
        Kind(
            "binary",
            64_000,
            "binary_quantize({column}::vector({width}))::bit({width})",
            "bit_hamming_ops",
            "<~>",
            8,
        ),
    )
}


class VectorIndex(NamedTuple):
    """How the vectors of one width are indexed."""

    kind: Kind
    width: int

    def of(self, column: str) -> str:
        """Return the indexed expression, as SQL."""
        return self.kind.expression.format(column=column, width=self.width)

    @property
    def wanted(self) -> str:
        """What to compare the expression with, as SQL: the query's vector, or its signs."""
        return self.of("%(vector)s") if self.kind.distance == "<~>" else "%(vector)s"


def vector_index(width: int, *, chosen: str = AUTO) -> VectorIndex:
    """Return the index for vectors of this width: of the chosen kind, if the width allows it.

    Otherwise vectors are indexed as they are up to 2,000 dimensions, in half precision up to
    4,000, and above that by their signs.
    """
    fitting = [kind for kind in KINDS.values() if width <= kind.widest]
    index = next((kind for kind in fitting if kind.name == chosen), fitting[0])
    return VectorIndex(index, width)


def chosen_index(space: Space) -> VectorIndex:
    """Return the index that the settings choose for a space."""
    return vector_index(space.dimensions, chosen=conf.current().index_type)


def vector_name(space: Space, kind: str = "") -> str:
    """Return the name of a space's vector index of a kind. By default, of the chosen kind."""
    return f"pgembed_{space.pk}_{kind or chosen_index(space).kind.name}"


def found_among(names: Collection[str], space: Space) -> VectorIndex | None:
    """Return the space's vector index among these names, or None.

    An index of the chosen kind is preferred. While it is being built, there may be one of the
    kind that was chosen before.
    """
    for chosen in (chosen_index(space).kind.name, *KINDS):
        if vector_name(space, chosen) in names:
            return vector_index(space.dimensions, chosen=chosen)
    return None
