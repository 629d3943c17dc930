"""The two arms of a search: by words, and by meaning. Each finds chunks, one a row."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db.models import (
    BooleanField,
    Exists,
    F,
    FloatField,
    Func,
    Model,
    OuterRef,
    Q,
    QuerySet,
    TextField,
    Value,
)
from django.db.models.functions import Cast
from django.db.models.lookups import IsNull

from pgembed_django.models import Job, Space
from pgembed_django.providers.base import Vector
from pgembed_django.retrieval import distances, routes
from pgembed_django.retrieval.targets import Target
from pgembed_django.retrieval.words import Words

CHUNKS_PER_ROW = 1.5
"""How many of the nearest chunks are taken for a row that is wanted, to begin with."""


class Depth(NamedTuple):
    """How far a ranking is followed: ``rows`` at the most, ``results`` of them for certain."""

    results: int
    rows: int


class Found(NamedTuple):
    """A row's best chunk. ``value`` is its cosine, or its rank by words."""

    key: Any
    chunk: int
    value: float
    waits: bool = False
    """It has no vector yet: only its words can find it."""


class Tsquery(Func):
    """A tsquery out of its text."""

    template = "%(expressions)s::tsquery"
    output_field = TextField()


class Matches(Func):
    """Whether a passage's words match a tsquery."""

    template = "%(expressions)s"
    arg_joiner = " @@ "
    output_field = BooleanField()


class Rank(Func):
    """How well: more of the words, more often, in a shorter passage (the 1).

    ``ts_rank`` and not ``ts_rank_cd``: the latter asks how near to each other all the words
    are, and puts the passages that lack one last. Measured in ``benchmarks/search``.
    """

    function = "ts_rank"
    template = "%(function)s(%(expressions)s, 1)"
    output_field = FloatField()


def lexical(
    target: Target[Any], space: Space, words: Words, *, depth: Depth, within: bool
) -> list[Found]:
    """Return the rows whose passages match the words best."""
    chunks = (
        _chunks(target, space, within=within)
        .filter(Matches(F("fulltext"), Tsquery(Value(words.finding))))
        .annotate(value=Rank(F("fulltext"), Tsquery(Value(words.ranking))))
        .order_by("-value", "id")
    )
    return _best(chunks, depth)[0]


def semantic(
    target: Target[Any],
    space: Space,
    vector: Vector,
    *,
    depth: Depth,
    within: bool,
    indexed_chunks: float | None,
) -> list[Found]:
    """Return the rows whose passages are nearest in meaning."""
    nearness = distances.of(space, vector)
    chunks = _chunks(target, space, within=within).filter(embedding__isnull=False)
    chunks = chunks.annotate(value=nearness.exact)
    keys = target.keys if within else None
    if not routes.is_exact(keys, indexed_chunks=indexed_chunks, taken=depth.rows):
        by_index = chunks.annotate(indexed=nearness.indexed).order_by("indexed")
        found, is_enough = _best(by_index, depth, spread=nearness.spread, using=target.using)
        if is_enough:
            return _similar(found)
    # There is no index, or it ended before enough rows had passed the filter.
    return _similar(_best(chunks.order_by("value", "id"), depth)[0])


def _chunks(target: Target[Any], space: Space, *, within: bool) -> QuerySet[Model]:
    """Return the chunks that may be ranked: of this space alone, of these rows alone."""
    spec = target.spec
    chunks = spec.embedding_model._base_manager.using(target.using).filter(space_id=space.pk)
    if within:
        chunks = chunks.filter(source__in=target.keys)
    if spec.stale == "hide":
        waiting = Job.objects.filter(
            spec=spec.key, source_pk=Cast(OuterRef("source_id"), TextField())
        )
        # Not the reconciler's: while another space is filled, these vectors are as good as ever.
        waiting = waiting.filter(kind__in=(Job.Kind.WRITE, Job.Kind.MANUAL_RETRY))
        # Without a vector the text was stored a moment ago: it is not an older one.
        has_job = Q()
        for status in (Job.Status.PENDING, Job.Status.RUNNING, Job.Status.FAILED):
            has_job |= Q(Exists(waiting.filter(status=status, settled_at=None)))
        chunks = chunks.filter(Q(embedding__isnull=True) | ~has_job)
    return chunks


def _best(
    chunks: QuerySet[Model], depth: Depth, *, spread: int = 1, using: str | None = None
) -> tuple[list[Found], bool]:
    """Return the best chunk of each row, and whether there are rows enough.

    ``using`` says that an index is read, which may end before the rows do.
    """
    taken = int(depth.rows * CHUNKS_PER_ROW) * spread
    chunks = chunks.annotate(waits=IsNull(F("embedding"), True))
    columns = chunks.values_list("source_id", "id", "value", "waits")
    while True:
        if using:
            with routes.scanning(using, taken=taken):
                found = [Found(*row) for row in columns[:taken]]
            found.sort(key=lambda chunk: (chunk.value, chunk.chunk))
        else:
            found = [Found(*row) for row in columns[:taken]]
        best: dict[Any, Found] = {}
        for chunk in found:
            best.setdefault(chunk.key, chunk)
        is_enough = len(best) >= depth.results
        if is_enough or len(found) < taken:
            return list(best.values())[: depth.rows], is_enough
        taken *= 2  # a few long rows hold all the best chunks


def _similar(found: list[Found]) -> list[Found]:
    """Turn distances into cosines."""
    return [Found(one.key, one.chunk, 1.0 - one.value) for one in found]
