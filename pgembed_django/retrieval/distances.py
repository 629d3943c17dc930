"""How near two vectors are, in the words of the index that a space of this width has."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db.models import CharField, Expression, F, FloatField, Func, Value
from django.db.models.functions import Cast
from pgvector.django import CosineDistance, HalfVectorField, VectorField

from pgembed_django.models import Space
from pgembed_django.providers.base import Vector
from pgembed_django.spaces import indexes


class Nearness(NamedTuple):
    """``exact`` is the cosine distance, ``indexed`` what the space's index is ordered by.

    The nearest by the index have to be looked at ``spread`` times as many, to be ranked
    again exactly.
    """

    exact: Expression
    indexed: Expression
    spread: int


class Signs(Func):
    """The signs of a vector's components, as bits."""

    function = "binary_quantize"
    output_field = CharField()

    def __init__(self, vector: Any, dimensions: int) -> None:
        super().__init__(vector, template=f"%(function)s(%(expressions)s)::bit({int(dimensions)})")


class HammingDistance(Func):
    """How many bits differ."""

    template = "(%(expressions)s)"
    arg_joiner = " <~> "
    output_field = FloatField()


def of(space: Space, vector: Vector) -> Nearness:
    """Return how far the space's vectors are from this one, as ``indexes.vector_index`` does."""
    width = space.dimensions
    wanted = Value("[" + ",".join(map(str, vector.tolist())) + "]")
    # Without the cast no index has this expression: the plan is an exact one.
    exact = CosineDistance(F("embedding"), wanted, output_field=FloatField())
    if width <= indexes.MAX_VECTOR_DIMENSIONS:
        stored = Cast("embedding", VectorField(dimensions=width))
        return Nearness(exact, CosineDistance(stored, wanted, output_field=FloatField()), 1)
    if width <= indexes.MAX_HALFVEC_DIMENSIONS:
        half = Cast("embedding", HalfVectorField(dimensions=width))
        return Nearness(exact, CosineDistance(half, wanted, output_field=FloatField()), 2)
    typed = VectorField(dimensions=width)
    signs = Signs(Cast("embedding", typed), width), Signs(Cast(wanted, typed), width)
    return Nearness(exact, HammingDistance(*signs), 8)
