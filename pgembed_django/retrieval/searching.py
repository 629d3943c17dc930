"""``search``: ask both arms of each model, fuse them by rank, return one page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, get_args, overload

from asgiref.sync import sync_to_async
from django.db.models import Manager, Model, QuerySet

from pgembed_django import text as texts
from pgembed_django.exceptions import SearchError
from pgembed_django.retrieval import fusion, showing, targets
from pgembed_django.retrieval.fusion import Answer
from pgembed_django.retrieval.results import Hit, Mode, Ranking, Results
from pgembed_django.retrieval.showing import Ranked

MOST_CHARACTERS = 32_768
"""How much of a query is used. Models take less, and cut it to their context themselves."""

Row = TypeVar("Row", bound=Model)
Some = type[Model] | QuerySet[Any] | Manager[Any]


@overload
def search(
    where: type[Row] | QuerySet[Row] | Manager[Row],
    text: str,
    *,
    limit: int = 10,
    offset: int = 0,
    mode: Mode = "hybrid",
    name: str | None = None,
) -> Results[Row]: ...
@overload
def search(
    where: Sequence[Some],
    text: str,
    *,
    limit: int = 10,
    offset: int = 0,
    mode: Mode = "hybrid",
    name: str | None = None,
) -> Results[Any]: ...
def search(
    where: Some | Sequence[Some],
    text: str,
    *,
    limit: int = 10,
    offset: int = 0,
    mode: Mode = "hybrid",
    name: str | None = None,
) -> Results[Any]:
    """Return the rows of a model, a queryset, or a list of these, that match a text best.

    ``mode`` is ``hybrid`` (by words and by meaning), ``semantic`` or ``lexical``. For the next
    page, pass ``Results.next_offset`` as ``offset``. ``name`` chooses between several
    ``@embeddable`` on one model. If the query cannot be embedded, ``semantic`` and ``hybrid``
    search by words only, and ``Results.degraded`` is true.

    Raises:
        SearchError: the text, limit, offset, mode or queryset cannot be used.
        ImproperlyConfigured: the model is not embeddable, or a setting is wrong.
    """
    targets.check_page(limit, offset)
    if mode not in get_args(Mode):
        raise SearchError(f"mode is {mode!r}. Choose one of {', '.join(get_args(Mode))}.")
    if not isinstance(text, str):
        raise SearchError(f"Cannot search for {text!r}. Give a string.")
    found = targets.of_several(where, name=name)
    query = texts.clean(text[:MOST_CHARACTERS])
    questions = [fusion.ask(target, query, mode=mode) for target in found]
    # Rank one row more than the page has, to know whether there is a next page.
    reach = offset + limit + 1
    answers = [fusion.answer(question, reach=reach) for question in questions]
    return page(answers, limit=limit, offset=offset)


def page(answers: Sequence[Answer], *, limit: int, offset: int) -> Results[Any]:
    """Return one page of the ranked rows. Several models are merged by rank, not by score."""
    merged = _merged(answers)
    wanted = merged[offset : offset + limit]
    hits: dict[tuple[int, Any], Hit[Any]] = {}
    for number, answer in enumerate(answers):
        ranked = [one for where, one in wanted if where == number]
        shown = showing.show(answer.question.target, ranked, words=answer.words)
        before = [one.key for where, one in merged[:offset] if where == number]
        is_short = len(shown) < len(ranked) or showing.hides(answer.question.target, before)
        if not answer.within and is_short:
            # Rows outside the queryset were ranked too: rank again, within it.
            within = fusion.answer(answer.question, reach=answer.reach, within=True)
            others = [within if other is answer else other for other in answers]
            return page(others, limit=limit, offset=offset)
        hits |= {(number, hit.instance.pk): hit for hit in shown}
    in_order = (hits.get((number, one.key)) for number, one in wanted)
    return Results(
        hits=tuple(hit for hit in in_order if hit is not None),
        ranking=_ranking(answers),
        spaces=tuple(answer.space for answer in answers if answer.space),
        degraded=any(answer.degraded for answer in answers),
        note=" ".join(dict.fromkeys(answer.note for answer in answers if answer.note)),
        next_offset=_next_offset(offset + limit, len(merged)),
    )


@overload
async def asearch(
    where: type[Row] | QuerySet[Row] | Manager[Row],
    text: str,
    *,
    limit: int = 10,
    offset: int = 0,
    mode: Mode = "hybrid",
    name: str | None = None,
) -> Results[Row]: ...
@overload
async def asearch(
    where: Sequence[Some],
    text: str,
    *,
    limit: int = 10,
    offset: int = 0,
    mode: Mode = "hybrid",
    name: str | None = None,
) -> Results[Any]: ...
async def asearch(
    where: Some | Sequence[Some],
    text: str,
    *,
    limit: int = 10,
    offset: int = 0,
    mode: Mode = "hybrid",
    name: str | None = None,
) -> Results[Any]:
    """Search like ``search``, without blocking the event loop."""
    run: Callable[[], Results[Any]] = partial(
        search, where, text, limit=limit, offset=offset, mode=mode, name=name
    )
    return await sync_to_async(run)()


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
