"""``similar_to``: find the rows whose vectors are nearest to those of one row."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import numpy as np
from asgiref.sync import sync_to_async
from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet

from pgembed_django.exceptions import SearchError
from pgembed_django.models import Space
from pgembed_django.providers.base import Vector
from pgembed_django.retrieval import fusion, queries, searching, surveying, targets
from pgembed_django.retrieval.fusion import Question
from pgembed_django.retrieval.results import Results
from pgembed_django.retrieval.targets import Target

UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that no text in a database has."""

Row = TypeVar("Row", bound=Model)


def similar_to(
    instance: Row,
    *,
    limit: int = 10,
    offset: int = 0,
    among: QuerySet[Row] | None = None,
    name: str | None = None,
) -> Results[Row]:
    """Return the rows that are nearest to ``instance``, which must be embedded already.

    Uses stored vectors only, so it works while the provider is down.

    Raises:
        SearchError: the row has no vectors yet, its key is of another type, or ``among``, limit
            or offset cannot be used.
        ImproperlyConfigured: the model is not embeddable.
    """
    targets.check_page(limit, offset)
    if not isinstance(instance, Model):
        raise SearchError(f"Cannot compare {instance!r} with rows. Give a row.")
    everything = instance.__class__._default_manager.using(instance._state.db)
    target = targets.of(everything if among is None else among, name=name)
    if target.spec is not targets.spec_of(instance.__class__, name=name):
        raise SearchError(
            f"Cannot compare rows of {instance.__class__.__name__} with rows of "
            f"{target.queryset.model.__name__}: their vectors are of different spaces."
        )
    survey = surveying.survey(target, "")
    key = _key(instance)
    vector = survey and _mean(target, survey.space, key)
    if survey is None or vector is None:
        raise SearchError(
            f"{instance.__class__.__name__} {instance.pk} has no vectors yet. Save it, and see "
            "that manage.py embed_worker runs, that it matches the condition of @embeddable, and "
            "that its text is not empty."
        )
    question = Question(
        target=Target(target.queryset.exclude(pk=key), target.spec),
        text="",
        mode="semantic",
        survey=survey,
        pending=queries.known(survey.space, vector),
    )
    answer = fusion.answer(question, reach=offset + limit + 1)
    return searching.page([answer], limit=limit, offset=offset)


async def asimilar_to(
    instance: Row,
    *,
    limit: int = 10,
    offset: int = 0,
    among: QuerySet[Row] | None = None,
    name: str | None = None,
) -> Results[Row]:
    """Find like ``similar_to``, without blocking the event loop."""
    return await sync_to_async(similar_to)(
        instance, limit=limit, offset=offset, among=among, name=name
    )


def _key(instance: Model) -> Any:
    """Return the row's key as its field has it: an unsaved instance may have any value.

    Raises:
        SearchError: no row can have such a key.
    """
    field: Any = instance._meta.pk
    try:
        key = field.to_python(instance.pk)
        if not isinstance(key, str) or not UNSTORABLE.search(key):
            return key
    except (TypeError, ValueError, ArithmeticError, ValidationError):
        pass
    raise SearchError(
        f"{instance.pk!r} is no key of {instance.__class__.__name__}: "
        f"{field.name} is a {field.__class__.__name__}."
    )


def _mean(target: Target[Any], space: Space, key: Any) -> Vector | None:
    """Return the mean of the vectors of the row with this key in a space, or None without any."""
    if key is None:
        return None
    own = target.spec.embedding_model._base_manager.using(target.using).filter(
        source_id=key, space_id=space.pk, embedding__isnull=False
    )
    vectors = list(own.values_list("embedding", flat=True))
    if not vectors:
        return None
    middle: Vector = np.asarray(vectors, dtype=np.float32).mean(axis=0, dtype=np.float32)
    return middle
