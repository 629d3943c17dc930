"""The two arms of a search: by words, and by meaning. Each finds chunks, one a row."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
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
from pgembed_django.retrieval.words import Opened, Words

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


class Arm(NamedTuple):
    """One way to find: a query of chunks, the best ones first, of which some are taken."""

    chunks: QuerySet[Model]
    is_semantic: bool
    spread: int = 1
    exact: QuerySet[Model] | None = None
    """Where ``chunks`` reads an index, which may end too early: the same by reading all."""


def lexical(target: Target[Any], space: Space, words: Words, *, within: bool) -> Arm:
    """Return the arm that finds the passages that match the words best."""
    chunks = (
        _chunks(target, space, within=within)
        .filter(Matches(F("fulltext"), Tsquery(Value(words.finding))))
        .annotate(value=Rank(F("fulltext"), Tsquery(Value(words.ranking))))
        .order_by("-value", "id")
    )
    return Arm(chunks, is_semantic=False)


def semantic(
    target: Target[Any],
    opened: Opened,
    vector: Vector,
    *,
    depth: Depth,
    within: bool,
) -> Arm:
    """Return the arm that finds the passages nearest in meaning."""
    nearness = distances.of(opened.space, vector)
    chunks = _chunks(target, opened.space, within=within).filter(embedding__isnull=False)
    chunks = chunks.annotate(value=nearness.exact)
    exact = chunks.order_by("value", "id")
    keys = target.keys if within else None
    if routes.is_exact(keys, indexed_chunks=opened.indexed_chunks, taken=depth.rows):
        return Arm(exact, is_semantic=True)
    by_index = chunks.annotate(indexed=nearness.indexed).order_by("indexed")
    return Arm(by_index, is_semantic=True, spread=nearness.spread, exact=exact)


def find(arms: Sequence[Arm], *, depth: Depth, using: str) -> list[list[Found]]:
    """Return what each arm finds, best first, one chunk a row, with one statement for all."""
    taken = [int(depth.rows * CHUNKS_PER_ROW) * arm.spread for arm in arms]
    looks = _look(arms, taken, using=using)
    return [
        _best(arm, found, taken=number, depth=depth, using=using)
        for arm, found, number in zip(arms, looks, taken, strict=True)
    ]


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
        # Without a vector the text was stored a moment ago: it is not an older one.
        has_job = Q()
        for status in (Job.Status.PENDING, Job.Status.RUNNING):
            has_job |= Q(Exists(waiting.filter(status=status)))
        chunks = chunks.filter(Q(embedding__isnull=True) | ~has_job)
    return chunks


def _look(arms: Sequence[Arm], taken: Sequence[int], *, using: str) -> list[list[Found]]:
    """Return the chunks that each arm finds first."""
    if not arms:
        return []
    parts = [
        arm.chunks.annotate(arm=Value(number), waits=IsNull(F("embedding"), True)).values_list(
            "arm", "source_id", "id", "value", "waits"
        )[:most]
        for number, (arm, most) in enumerate(zip(arms, taken, strict=True))
    ]
    rows = parts[0].union(*parts[1:], all=True) if len(parts) > 1 else parts[0]
    looks: list[list[Found]] = [[] for _ in arms]
    by_index = [most for arm, most in zip(arms, taken, strict=True) if arm.exact is not None]
    with routes.scanning(using, taken=max(by_index)) if by_index else nullcontext():
        for number, *found in rows:
            looks[number].append(Found(*found))
    return looks


def _best(arm: Arm, found: list[Found], *, taken: int, depth: Depth, using: str) -> list[Found]:
    """Return the best chunk of each row, after looking further if these are of few rows."""
    sign = 1 if arm.is_semantic else -1
    while True:
        best: dict[Any, Found] = {}
        # A union promises no order, and an index may be a little out of it.
        for chunk in sorted(found, key=lambda chunk: (sign * chunk.value, chunk.chunk)):
            best.setdefault(chunk.key, chunk)
        if len(best) >= depth.results or len(found) < taken:
            break
        taken *= 2  # a few long rows hold all the best chunks
        [found] = _look([arm], [taken], using=using)
    if arm.exact is not None and len(best) < depth.results:
        # The index ended before enough rows had passed the filter.
        return find([Arm(arm.exact, is_semantic=True)], depth=depth, using=using)[0]
    rows = list(best.values())[: depth.rows]
    return [Found(*one[:2], 1.0 - one.value) for one in rows] if arm.is_semantic else rows
