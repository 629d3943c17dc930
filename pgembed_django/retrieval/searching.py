"""``search`` and ``similar_to``: find by each model's retrievers, fuse, return a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, get_args, overload

import numpy as np
from asgiref.sync import sync_to_async
from django.core.exceptions import ValidationError
from django.db.models import Manager, Model, QuerySet

from pgembed_django.core import text as texts
from pgembed_django.exceptions import SearchError
from pgembed_django.models import Space
from pgembed_django.providers.base import Vector
from pgembed_django.rerankers.base import Reranker
from pgembed_django.retrieval import (
    fusion,
    query_vectors,
    reranking,
    results,
    statistics,
    targets,
)
from pgembed_django.retrieval.fusion import Answer, Question
from pgembed_django.retrieval.results import Hit, Mode, Ranked, Ranking, Results
from pgembed_django.retrieval.targets import Target

MOST_CHARACTERS = 32_768
"""How much of a query is used. Models take less, and cut it to their context themselves."""

UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that no text in a database has."""

Row = TypeVar("Row", bound=Model)
Row_co = TypeVar("Row_co", bound=Model, covariant=True)
Some = type[Model] | QuerySet[Any] | Manager[Any]


class PageOptions(TypedDict, total=False):
    """The keywords of ``similar_to``. ``search`` says what they mean, and their defaults."""

    limit: int
    offset: int
    name: str | None
    min_similarity: float | None


class SearchOptions(PageOptions, total=False):
    """The keywords of ``search``, which says what they mean, and their defaults."""

    mode: Mode
    language: str | None
    rerank: str | None


@overload
def search(
    where: type[Row] | QuerySet[Row] | Manager[Row], text: str, **options: Unpack[SearchOptions]
) -> Results[Row]: ...
@overload
def search(where: Sequence[Some], text: str, **options: Unpack[SearchOptions]) -> Results[Any]: ...
def search(
    where: Some | Sequence[Some],
    text: str,
    *,
    limit: int = 10,
    offset: int = 0,
    mode: Mode = "hybrid",
    name: str | None = None,
    min_similarity: float | None = None,
    language: str | None = None,
    rerank: str | None = None,
) -> Results[Any]:
    """Return the rows of a model, a queryset, or a list of these, that match a text best.

    ``mode`` is ``hybrid`` (by words and by meaning), ``semantic`` or ``lexical``. For the next
    page, pass ``Results.next_offset`` as ``offset``. ``name`` chooses between several
    ``@embeddable`` on one model. Rows with a lower cosine than ``min_similarity`` are left out,
    even if they have the words.

    ``language`` is a full-text configuration or a language code for the words of ``text``: by
    default that of the rows, or the active language if a column holds that of each row.
    ``rerank`` names a reranker in ``PGEMBED_RERANKERS``, which orders the first 50 rows anew.

    If the query cannot be embedded, ``semantic`` and ``hybrid`` search by words only, and
    ``Results.degraded`` is true.

    Raises:
        SearchError: a keyword, the text or the queryset cannot be used.
        ImproperlyConfigured: the model is not embeddable, or a setting is wrong.
    """
    targets.check_page(limit, offset)
    if mode not in get_args(Mode):
        raise SearchError(f"mode is {mode!r}. Choose one of {', '.join(get_args(Mode))}.")
    targets.check_similarity(min_similarity)
    if min_similarity is not None and mode == "lexical":
        raise SearchError(
            f"min_similarity is {min_similarity!r}, but lexical search compares no vectors. Leave "
            'it out, or choose mode="hybrid" or "semantic".'
        )
    if not isinstance(text, str):
        raise SearchError(f"Cannot search for {text!r}. Give a string.")
    reranker = None if rerank is None else reranking.named(rerank)
    found = targets.of_several(where, name=name)
    query = texts.clean(text[:MOST_CHARACTERS])
    ask = partial(fusion.ask, mode=mode, language=language, min_similarity=min_similarity)
    questions = [ask(target, query) for target in found]
    # Rank one row more than the page has, to know whether there is a next page.
    reach = offset + limit + 1
    if reranker:
        reach = max(reach, reranking.MOST)
    answers = [fusion.answer(question, reach=reach) for question in questions]
    return _page(answers, limit=limit, offset=offset, reranker=reranker)


@overload
async def asearch(
    where: type[Row] | QuerySet[Row] | Manager[Row], text: str, **options: Unpack[SearchOptions]
) -> Results[Row]: ...
@overload
async def asearch(
    where: Sequence[Some], text: str, **options: Unpack[SearchOptions]
) -> Results[Any]: ...
async def asearch(
    where: Some | Sequence[Some], text: str, **options: Unpack[SearchOptions]
) -> Results[Any]:
    """Search like ``search``, without blocking the event loop."""
    run: Callable[[], Results[Any]] = partial(search, where, text, **options)
    return await sync_to_async(run)()


def warm_up() -> None:
    """Load the models that searches use, so that the first search of this process need not wait.

    It returns at once, and logs what cannot be loaded. Only models that run in this process are
    loaded, of providers and of rerankers. Call it when a web process starts: at the end of
    ``wsgi.py`` or ``asgi.py``, or after a fork, because threads do not survive it.
    """
    query_vectors.vectors.warm_up()
    reranking.calls.warm_up()


def _page(
    answers: Sequence[Answer], *, limit: int, offset: int, reranker: Reranker | None = None
) -> Results[Any]:
    """Return one page of the ranked rows. Several models are merged by rank, not by score."""
    merged = _merged(answers)

    def again_within(answer: Answer) -> Results[Any]:
        """Rank again without the rows outside the queryset, which were ranked too."""
        within = fusion.answer(answer.question, reach=answer.reach, within=True)
        others = [within if other is answer else other for other in answers]
        return _page(others, limit=limit, offset=offset, reranker=reranker)

    scores = None
    if reranker:
        passages: dict[tuple[int, Any], str] = {}
        for number, answer in enumerate(answers):
            first = [one for where, one in merged[: reranking.MOST] if where == number]
            readable = results.passages_of(answer.question.target, first)
            if not answer.within and len(readable) < len(first):
                return again_within(answer)
            passages |= {(number, key): passage for key, passage in readable.items()}
        scores = reranking.scores(reranker, answers[0].question.text, passages)
        merged = reranking.ordered(merged, scores or {})
    wanted = merged[offset : offset + limit]
    hits: dict[tuple[int, Any], Hit[Any]] = {}
    for number, answer in enumerate(answers):
        ranked = [one for where, one in wanted if where == number]
        shown = results.hits_of(answer.question.target, ranked, words=answer.words)
        before = [one.key for where, one in merged[:offset] if where == number]
        is_short = len(shown) < len(ranked) or answer.question.target.hides(before)
        if not answer.within and is_short:
            return again_within(answer)
        hits |= {(number, hit.instance.pk): hit for hit in shown}
    in_order = (hits.get((number, one.key)) for number, one in wanted)
    notes = [answer.note for answer in answers]
    notes += [reranking.NOT_RERANKED] if reranker and scores is None else []
    return Results(
        hits=tuple(hit for hit in in_order if hit is not None),
        ranking=_ranking(answers),
        spaces=tuple(answer.space for answer in answers if answer.space),
        degraded=any(answer.degraded for answer in answers),
        reranked=bool(scores),
        note=" ".join(dict.fromkeys(note for note in notes if note)),
        next_offset=_next_offset(offset + limit, len(merged)),
    )


def _merged(answers: Sequence[Answer]) -> list[tuple[int, Ranked]]:
    """Return the rows of all models, best first, each with the number of its answer."""
    if len(answers) == 1:
        return [(0, one) for one in answers[0].ranked]
    ranked = [
        (number, one._replace(score=one.merit))
        for number, answer in enumerate(answers)
        for one in answer.ranked
    ]
    # The sort is stable: on a tie, the model that was given first comes first.
    return sorted(ranked, key=lambda one: -one[1].score)


def _ranking(answers: Sequence[Answer]) -> Ranking:
    rankings = {answer.ranking for answer in answers} - {"none"} or {"none"}
    return rankings.pop() if len(rankings) == 1 else "mixed"


def _next_offset(offset: int, ranked: int) -> int | None:
    return offset if offset < min(ranked, targets.MOST_RESULTS) else None


def similar_to(
    instance: Row,
    *,
    limit: int = 10,
    offset: int = 0,
    among: QuerySet[Row] | None = None,
    name: str | None = None,
    min_similarity: float | None = None,
) -> Results[Row]:
    """Return the rows that are nearest to ``instance``, which must be embedded already.

    Uses stored vectors only, so it works while the provider is down.

    Raises:
        SearchError: the row has no vectors yet, its key is of another type, or ``among``, limit
            or offset cannot be used.
        ImproperlyConfigured: the model is not embeddable.
    """
    targets.check_page(limit, offset)
    targets.check_similarity(min_similarity)
    if not isinstance(instance, Model):
        raise SearchError(f"Cannot compare {instance!r} with rows. Give a row.")
    everything = instance.__class__._default_manager.using(instance._state.db)
    target = targets.of(everything if among is None else among, name=name)
    if target.spec is not targets.spec_of(instance.__class__, name=name):
        raise SearchError(
            f"Cannot compare rows of {instance.__class__.__name__} with rows of "
            f"{target.queryset.model.__name__}: their vectors are of different spaces."
        )
    survey = statistics.survey(target, "")
    key = _key_of(instance)
    vector = survey and _mean_vector(target, survey.space, key)
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
        pending=query_vectors.known(survey.space, vector),
        min_similarity=min_similarity,
    )
    answer = fusion.answer(question, reach=offset + limit + 1)
    return _page([answer], limit=limit, offset=offset)


async def asimilar_to(
    instance: Row, *, among: QuerySet[Row] | None = None, **options: Unpack[PageOptions]
) -> Results[Row]:
    """Find like ``similar_to``, without blocking the event loop."""
    return await sync_to_async(similar_to)(instance, among=among, **options)


def _key_of(instance: Model) -> Any:
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


def _mean_vector(target: Target[Any], space: Space, key: Any) -> Vector | None:
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


class Searchable(Generic[Row_co]):
    """The search methods of ``SearchQuerySet`` and ``SearchManager``."""

    def search(self, text: str, **options: Unpack[SearchOptions]) -> Results[Row_co]:
        """Return the rows of this queryset that match ``text`` best."""
        return search(self._rows, text, **options)

    async def asearch(self, text: str, **options: Unpack[SearchOptions]) -> Results[Row_co]:
        """Search like ``search``, without blocking the event loop."""
        return await asearch(self._rows, text, **options)

    # A covariant type of a parameter is unsound, but rows of another model raise SearchError.
    def similar_to(
        self,
        instance: Row_co,  # type: ignore[misc]
        **options: Unpack[PageOptions],
    ) -> Results[Row_co]:
        """Return the rows of this queryset nearest to ``instance``."""
        return similar_to(instance, among=self._rows, **options)

    async def asimilar_to(
        self,
        instance: Row_co,  # type: ignore[misc]
        **options: Unpack[PageOptions],
    ) -> Results[Row_co]:
        """Find like ``similar_to``, without blocking the event loop."""
        return await asimilar_to(instance, among=self._rows, **options)

    @property
    def _rows(self) -> QuerySet[Row_co]:
        rows: Any = self
        everything: QuerySet[Row_co] = rows.all()
        return everything


class SearchQuerySet(Searchable[Row_co], QuerySet[Row_co]):
    """A queryset with search methods. They take the same keywords as the functions."""

    @classmethod
    def as_manager(cls) -> SearchManager[Row_co]:
        manager = SearchManager.from_queryset(cls)()
        vars(manager)["_built_with_as_manager"] = True  # as Django's: migrations ask for it
        return manager


class SearchManager(Searchable[Row_co], Manager[Row_co]):
    """A manager with the methods of ``SearchQuerySet``: ``objects = SearchManager()``."""

    _queryset_class = SearchQuerySet

    if TYPE_CHECKING:
        # django-stubs know a manager's own queryset only with from_queryset, and only in mypy.
        def get_queryset(self) -> SearchQuerySet[Row_co]: ...
        def all(self) -> SearchQuerySet[Row_co]: ...
        def none(self) -> SearchQuerySet[Row_co]: ...
        def filter(self, *args: Any, **kwargs: Any) -> SearchQuerySet[Row_co]: ...
        def exclude(self, *args: Any, **kwargs: Any) -> SearchQuerySet[Row_co]: ...
        def complex_filter(self, filter_obj: Any) -> SearchQuerySet[Row_co]: ...
        def union(self, *other_qs: Any, **options: bool) -> SearchQuerySet[Row_co]: ...
        def intersection(self, *other_qs: Any) -> SearchQuerySet[Row_co]: ...
        def difference(self, *other_qs: Any) -> SearchQuerySet[Row_co]: ...
        def select_for_update(self, *args: Any, **kwargs: Any) -> SearchQuerySet[Row_co]: ...
        def select_related(self, *fields: Any) -> SearchQuerySet[Row_co]: ...
        def prefetch_related(self, *lookups: Any) -> SearchQuerySet[Row_co]: ...
        def annotate(self, *args: Any, **kwargs: Any) -> SearchQuerySet[Row_co]: ...
        def alias(self, *args: Any, **kwargs: Any) -> SearchQuerySet[Row_co]: ...
        def order_by(self, *field_names: Any) -> SearchQuerySet[Row_co]: ...
        def distinct(self, *field_names: str) -> SearchQuerySet[Row_co]: ...
        def reverse(self) -> SearchQuerySet[Row_co]: ...
        def defer(self, *fields: Any) -> SearchQuerySet[Row_co]: ...
        def only(self, *fields: str) -> SearchQuerySet[Row_co]: ...
        def using(self, alias: str | None) -> SearchQuerySet[Row_co]: ...
