"""Find rows by meaning: cosine distance in the active space, the best chunk of each row.

Queries are embedded with the provider of the space that is searched, so vectors of two
models are never compared, also while the settings and the stored vectors disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import numpy as np
from django.core.exceptions import ImproperlyConfigured
from django.db.models import Exists, FloatField, Model, OuterRef, QuerySet, TextField, Value
from django.db.models.functions import Cast
from pgvector.django import CosineDistance, VectorField

from pgembed_django import spaces, specs
from pgembed_django import text as texts
from pgembed_django.exceptions import SearchError
from pgembed_django.models import Job, Space
from pgembed_django.providers.base import Vector
from pgembed_django.specs import Spec

MAX_LIMIT = 1000
QUERY_SECONDS = 2.0
CHUNKS_PER_RESULT = 4

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True, slots=True)
class Results(Sequence[Row]):
    """The rows found, best first. Each has ``score`` (cosine, 1 is the same) and ``passage``.

    ``space`` is what was searched, or None; ``note`` says what a person should know.
    """

    rows: tuple[Row, ...]
    space: Space | None
    note: str = ""

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)


def search(
    where: type[Row] | QuerySet[Row], text: str, *, limit: int = 10, name: str | None = None
) -> Results[Row]:
    """Return the rows of a model, or of a queryset, whose text is nearest in meaning.

    ``name`` chooses between several ``@embeddable`` of one model. An empty text finds nothing.

    Raises:
        SearchError: the limit or the queryset cannot be used as given.
        ImproperlyConfigured: the model is not embeddable.
        ProviderError: the query could not be embedded.
    """
    queryset = _queryset(where)
    spec = _spec(queryset.model, name)
    _check_limit(limit)
    space = spaces.active(spec, using=queryset.db)
    query = texts.clean(text)
    if not query:
        return Results((), space, "The query is empty.")
    if space is None:
        return Results((), None, "Nothing is embedded yet: is manage.py embed_worker running?")
    provider = spaces.provider_of(space)
    vector = provider.embed_query(query, timeout_seconds=QUERY_SECONDS)
    return Results(_nearest(spec, space, queryset, vector, limit), space)


def similar_to(
    instance: Row,
    *,
    limit: int = 10,
    among: QuerySet[Row] | None = None,
    name: str | None = None,
) -> Results[Row]:
    """Return the rows nearest to one that is embedded already, without that one.

    Raises:
        SearchError: the row has no vectors yet, or ``among`` or the limit cannot be used.
        ImproperlyConfigured: the model is not embeddable.
    """
    queryset = _queryset(type(instance)._default_manager.all() if among is None else among)
    spec = _spec(type(instance), name)
    _check_limit(limit)
    using = queryset.db
    space = spaces.active(spec, using=using)
    own = spec.embedding_model._base_manager.using(using).filter(
        source_id=instance.pk, space=space, embedding__isnull=False
    )
    vectors = list(own.values_list("embedding", flat=True))
    if space is None or not vectors:
        raise SearchError(
            f"{instance!r} has no vectors yet. Save it, and see that manage.py embed_worker runs "
            "and that its text is not empty."
        )
    mean = np.asarray(vectors, dtype=np.float32).mean(axis=0, dtype=np.float32)
    others = queryset.exclude(pk=instance.pk)
    return Results(_nearest(spec, space, others, mean, limit), space)


def _nearest(
    spec: Spec, space: Space, queryset: QuerySet[Row], vector: Vector, limit: int
) -> tuple[Row, ...]:
    """Return the rows with the nearest chunks, one chunk a row."""
    chunks = _chunks(spec, space, queryset, vector)
    taken = limit * CHUNKS_PER_RESULT
    while True:
        nearest: list[Any] = list(chunks[:taken])
        best: dict[Any, Any] = {}
        for chunk in nearest:
            best.setdefault(chunk.source_id, chunk)
        if len(best) >= limit or len(nearest) < taken:
            break
        taken *= 2  # a few long rows hold all the nearest chunks
    keys = list(best)[:limit]
    rows = {row.pk: row for row in queryset.order_by().filter(pk__in=keys)}
    found = [rows[key] for key in keys if key in rows]
    for row in found:
        chunk = best[row.pk]
        vars(row).update(score=1.0 - chunk.distance, passage=_passage(spec, row, chunk))
    return tuple(found)


def _chunks(spec: Spec, space: Space, queryset: QuerySet[Row], vector: Vector) -> QuerySet[Model]:
    # With the Cast it is the expression that the space's index is built on.
    embedding = Cast("embedding", VectorField(dimensions=space.dimensions))
    chunks: QuerySet[Model] = (
        spec.embedding_model._base_manager.using(queryset.db)
        .filter(space=space, embedding__isnull=False)
        .filter(source__in=queryset.order_by().values("pk"))
        .annotate(
            distance=CosineDistance(embedding, Value(_literal(vector)), output_field=FloatField())
        )
        .defer("embedding", "fulltext", "chunk_digest", "text_digest")
        .order_by("distance", "source_id", "position")
    )
    if spec.when:
        chunks = chunks.filter(source__in=spec.rows(queryset.db).values("pk"))
    if spec.stale == "hide":
        waiting = Job.objects.filter(
            spec=spec.key, source_pk=Cast(OuterRef("source_id"), TextField())
        )
        # Not the reconciler's: while another space is filled, these vectors are as good as ever.
        waiting = waiting.filter(kind__in=(Job.Kind.WRITE, Job.Kind.MANUAL_RETRY))
        for status in (Job.Status.PENDING, Job.Status.RUNNING, Job.Status.FAILED):
            chunks = chunks.exclude(Exists(waiting.filter(status=status, settled_at=None)))
    return chunks


def _literal(vector: Vector) -> str:
    return "[" + ",".join(map(str, vector.tolist())) + "]"


def _passage(spec: Spec, row: Model, chunk: Any) -> str:
    """Return the best chunk's text; with ``store_text=False`` it is cut from the row again."""
    if chunk.passage is not None:
        return str(chunk.passage)
    return spec.text_of(row)[chunk.start_offset : chunk.end_offset]


def _queryset(where: type[Row] | QuerySet[Row]) -> QuerySet[Row]:
    if isinstance(where, type) and issubclass(where, Model):
        return where._default_manager.all()
    if not isinstance(where, QuerySet):
        raise SearchError(f"Cannot search in {where!r}. Give a model or a queryset of one.")
    if where.query.is_sliced:
        raise SearchError("Cannot search in a sliced queryset. Filter it, and use limit=.")
    if where.query.combinator:
        raise SearchError(
            f"Cannot search in a queryset combined by {where.query.combinator}(). "
            "Combine its conditions with Q objects."
        )
    return where


def _spec(model: type[Model], name: str | None) -> Spec:
    found = specs.of(model)
    if name is not None:
        named = [spec for spec in found if spec.key.split(".", 1)[1] == name]
        if not named:
            names = ", ".join(spec.key.split(".", 1)[1] for spec in found)
            raise ImproperlyConfigured(
                f"{model.__name__} has no @embeddable named {name!r}. It has: {names}."
            )
        return named[0]
    if len(found) > 1:
        names = ", ".join(spec.key.split(".", 1)[1] for spec in found)
        raise SearchError(
            f"{model.__name__} is decorated {len(found)} times. Choose with name=, one of: {names}."
        )
    return found[0]


def _check_limit(limit: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise SearchError(f"limit is {limit!r}. Give a whole number from 1 to {MAX_LIMIT}.")
