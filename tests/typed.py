"""What a user's type checker knows. mypy and pyright read it; nothing runs it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from django.contrib.auth.models import Group
from django.db.models import Model, Prefetch

from pgembed_django import (
    Results,
    SearchManager,
    SearchQuerySet,
    asearch,
    asimilar_to,
    embeddable,
    enqueue,
    search,
    similar_to,
)
from pgembed_django.retrieval import Hit
from pgembed_django.tasks import Task, cancel, enqueue_many, task
from pgembed_django.tasks.running import Context
from tests.typed_app.models import Named, Note, Subscripted


def declarations() -> None:
    assert_type(embeddable(fields=["name"])(Group), type[Group])
    embeddable(fields=["name"], text="told", prefetch=["user", Prefetch("user_set")])
    assert_type(enqueue(Group.objects.all()), int)
    embeddable(field=["name"])  # type: ignore[call-arg]
    embeddable(["name"])  # type: ignore[call-arg]


def searches(group: Group) -> None:
    assert_type(search(Group, "trout"), Results[Group])
    assert_type(search(Group.objects, "trout", rerank="best"), Results[Group])
    assert_type(search(Group.objects.filter(name="cooks"), "trout", limit=5), Results[Group])
    assert_type(search([Group, Group.objects.all()], "trout"), Results[Any])
    assert_type(similar_to(group, limit=5), Results[Group])


async def asynchronous_searches(group: Group) -> None:
    assert_type(await asearch(Group, "trout"), Results[Group])
    assert_type(await asearch(Group.objects, "trout"), Results[Group])
    assert_type(await asearch(Group.objects.filter(name="cooks"), "trout", limit=5), Results[Group])
    assert_type(await asearch([Group, Group.objects.all()], "trout"), Results[Any])
    assert_type(await asimilar_to(group, limit=5), Results[Group])


async def searches_of_a_queryset(rows: SearchQuerySet[Group], group: Group) -> None:
    assert_type(rows.search("trout", limit=5, mode="lexical"), Results[Group])
    assert_type(await rows.asearch("trout", limit=5, mode="lexical"), Results[Group])
    assert_type(rows.similar_to(group, limit=5), Results[Group])
    assert_type(await rows.asimilar_to(group, limit=5), Results[Group])
    rows.search("trout", most=5)  # type: ignore[call-arg]
    rows.similar_to(group, mode="lexical")  # type: ignore[call-arg]
    rows.similar_to(group, rerank="best")  # type: ignore[call-arg]


def searches_of_a_manager(rows: SearchManager[Group], group: Group) -> None:
    assert_type(rows.search("trout", limit=5, mode="lexical"), Results[Group])
    assert_type(rows.similar_to(group, limit=5), Results[Group])
    assert_type(rows.filter(name="cooks").search("trout"), Results[Group])
    assert_type(rows.search("trout").hits[0].instance, Group)


def managers_of_models(note: Note) -> None:
    assert_type(Named.objects.filter(title="trout").search("trout"), Results[Named])
    assert_type(Named.objects.order_by("title").similar_to(Named()), Results[Named])
    assert_type(Subscripted.objects.exclude(title="trout").search("trout"), Results[Subscripted])
    assert_type(Note.objects.recent().using("replica").search("trout"), Results[Note])
    assert_type(Note.objects.all().first(), Note | None)
    covariant: Results[Model] = Note.objects.search("trout")
    assert_type(len(covariant), int)
    Named.objects.all().similar_to(note)  # type: ignore[arg-type]


def hits(results: Results[Group]) -> None:
    for row in results:
        assert_type(row, Group)
    for hit in results.hits:
        assert_type(hit, Hit[Group])
        assert_type((hit.instance, hit.score, hit.passage), tuple[Group, float, str])


@task
def bare(number: int) -> str:
    return str(number)


@task(tenant="{tenant}", once="{request}", takes_context=True, keep_results=timedelta(days=1))
def with_context(context: Context, tenant: str, request: int = 0) -> int:
    with context.completing():
        assert_type(context.key, str)
    return request


@task(coalesce="{account}", bump="latest", max_wait=60)
async def asynchronous(account: int) -> None: ...


def calls_of_tasks(declared: Task[[int], str]) -> None:
    assert_type(bare.enqueue(3).return_value, str)
    assert_type(bare.call(3), str)
    assert_type(bare.using(priority=3).enqueue(number=3).return_value, str)
    assert_type(with_context.enqueue("a", request=3).return_value, int)
    assert_type(with_context.get_result("3").return_value, int)
    assert_type(declared.enqueue(3).return_value, str)
    assert_type(enqueue_many(bare, [{"number": 3}])[0].return_value, str)
    assert_type(cancel("3"), str)
    asynchronous.enqueue(3)
    bare.enqueue("3")  # type: ignore[arg-type]
    bare.enqueue()  # type: ignore[call-arg]
    with_context.enqueue(tenant=3)  # type: ignore[arg-type]
    task(onec="{number}")(bare.func)  # type: ignore[call-overload]
    task(bump="later")(bare.func)  # type: ignore[call-overload]


async def asynchronous_calls_of_tasks() -> None:
    result = await bare.aenqueue(3)
    assert_type(result.return_value, str)
