"""Every figure of coverage is the number of rows that a search returns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import models
from django.urls import reverse

from pgembed_django import search, spaces
from pgembed_django.admin.mixin import state_of
from pgembed_django.contrib.metrics import collectors
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Space, Worker
from pgembed_django.ops import status
from pgembed_django.retrieval import query_vectors
from pgembed_django.testing import without_triggers
from tests.app.models import Archived, Note, Page, PageExtra
from tests.db.conftest import claim
from tests.db.test_metrics import scrape_queue
from tests.db.test_operator_commands import run

pytestmark = pytest.mark.django_db

MODELS = [PageExtra, Note]
assert [specs.of(model)[0].stale for model in MODELS] == ["hide", "serve"]


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> Iterator[None]:
    query_vectors.vectors.clear()
    collectors._queue_collector.cache_clear()
    yield
    query_vectors.vectors.clear()
    collectors._queue_collector.cache_clear()


def make(model: type[models.Model], text: str) -> Any:
    if model is Note:
        return Note.objects.create(body=text)
    return PageExtra.objects.create(page=Page.objects.create(slug=text[:100] or "-"), summary=text)


def change(row: Any) -> None:
    field = "body" if isinstance(row, Note) else "summary"
    type(row).objects.filter(pk=row.pk).update(**{field: "a changed trout"})


def found(model: Any) -> int:
    return len(search(model, "trout", mode="semantic", limit=1000))


def coverage(model: Any, **options: Any) -> status.Coverage:
    [seen] = status.overview(using="default", specs=specs.of(model), **options).specs
    return seen.active.coverage


def fail(row: Any, ending: str, *, kind: str = "write") -> None:
    Job.objects.filter(status="pending", source_pk=row.pk).delete()
    spec = specs.of(type(row))[0].key
    Job.objects.create(
        spec=spec,
        source_pk=row.pk,
        status=ending,
        kind=kind,
        is_awaited=Job.Kind(kind).is_awaited,
        signature="x",
        finished_at="2026-01-01T00:00Z",
        last_error="x",
    )


def is_pending(row: Any) -> None:
    change(row)


def is_running(row: Any) -> None:
    change(row)
    claim()


def has_failed(row: Any) -> None:
    change(row)
    fail(row, "failed")


def is_dismissed(row: Any) -> None:
    change(row)
    fail(row, "dismissed")


def is_marked(row: Any) -> None:
    chunks(row).update(text_digest=b"hidden")


def is_looked_at(row: Any) -> None:
    """The reconciler's job fills another space."""
    change(row)
    Job.objects.filter(source_pk=row.pk).update(kind="reconciler", is_awaited=False)


def was_filled_in_vain(row: Any) -> None:
    fail(row, "failed", kind="reconciler")


def has_no_vector(row: Any) -> None:
    chunks(row).update(embedding=None)


def has_nothing_stored(row: Any) -> None:
    chunks(row).delete()


def has_vectors_in_another_space_only(row: Any) -> None:
    other = Space.objects.create(
        spec=specs.of(type(row))[0].key, fingerprint="x", model="x", dimensions=64, state="retired"
    )
    chunks(row).update(space=other)


def was_cut(row: Any) -> None:
    chunks(row).update(was_cut=True)


def chunks(row: Any) -> models.QuerySet[Any]:
    return specs.of(type(row))[0].embedding_model.objects.filter(source_id=row.pk)


STATES = [
    is_pending,
    is_running,
    has_failed,
    is_dismissed,
    is_marked,
    is_looked_at,
    was_filled_in_vain,
    has_no_vector,
    has_nothing_stored,
    has_vectors_in_another_space_only,
    was_cut,
]


@pytest.mark.parametrize("model", MODELS)
def test_what_is_covered_is_what_a_search_returns(model, run_jobs):
    rows = [make(model, f"trout {number}") for number in range(len(STATES) + 1)]
    run_jobs()

    for state, row in zip(STATES, rows, strict=False):
        before = found(model)
        state(row)

        assert coverage(model).covered == coverage(model, is_exact=True).covered == found(model)
        assert coverage(model).rows == len(rows)
        shown = model.objects.alias(vectors=state_of(model)).filter(vectors="fresh")
        assert set(shown) <= set(search(model, "trout", mode="semantic", limit=1000))
        if specs.of(model)[0].stale == "hide" and state in STATES[:5]:
            assert found(model) == before - 1


@pytest.mark.parametrize("model", MODELS)
def test_a_row_without_a_text_is_nothing_to_find(model, run_jobs):
    rows = [make(model, "trout"), make(model, "")]
    run_jobs()

    assert coverage(model) == status.Coverage(rows=1, covered=1)
    assert found(model) == 1

    change(rows[1])
    assert coverage(model) == status.Coverage(rows=2, covered=1)
    assert found(model) == 1

    fail(rows[1], "failed")
    assert coverage(model) == status.Coverage(rows=2, covered=1)


@pytest.mark.parametrize("model", MODELS)
def test_a_row_that_is_empty_in_a_new_space_only_is_still_found(model, run_jobs, settings):
    rows = [make(model, "trout") for _ in range(2)] if model is Note else [make(model, "trout")]
    run_jobs()
    [spec] = specs.of(model)
    settings.PGEMBED_PROVIDERS = {
        "default": {**settings.PGEMBED_PROVIDERS["default"], "MODEL": "another"}
    }
    _, building = spaces.ensure(spec, using="default")
    # The former model could not be reached when the text was emptied.
    chunk = chunks(rows[0]).get()
    chunk.pk, chunk.space, chunk.embedding, chunk.end_offset = None, building, None, 0
    chunk.save()

    assert coverage(model) == status.Coverage(rows=len(rows), covered=len(rows))
    assert found(model) == len(rows)


def test_a_row_that_has_left_the_condition_is_not_counted(run_jobs):
    rows = [Archived.objects.create(body="trout", is_public=True) for _ in range(3)]
    run_jobs()
    rows[0].is_public = False
    rows[0].save()
    with without_triggers(Archived):
        Archived.objects.filter(pk=rows[1].pk).update(is_public=None)

    assert coverage(Archived) == status.Coverage(rows=1, covered=1)
    assert found(Archived) == 1


def test_every_place_shows_what_a_search_returns(run_jobs, admin_client):
    for number in range(5):
        make(PageExtra, f"trout {number}")
    run_jobs()
    change(PageExtra.objects.first())
    key = specs.of(PageExtra)[0].key
    assert found(PageExtra) == 4

    told = run("embed_status", "--specs", key)
    assert ": 80 % of 5 rows" in told
    [seen] = json.loads(run("embed_status", "--specs", key, "--json"))["specs"]
    assert (seen["active"]["coverage"]["covered"], seen["active"]["coverage"]["rows"]) == (4, 5)
    with pytest.raises(CommandError, match="coverage 80 % of 5 rows"):
        run("embed_status", "--specs", key, "--fail-below-coverage", "99")
    assert "4 of 5 rows (80.0%)" in run("embed_spaces", "--specs", key)
    page = admin_client.get(reverse("admin:app_list", args=["pgembed"])).content.decode()
    assert "80 % of 5 rows" in page
    gauge: Callable[..., float | None] = scrape_queue()
    assert gauge("coverage_ratio", spec=key, space="active") == 0.8
    assert gauge("rows", spec=key) == 5


def test_what_a_spec_hides_does_not_delay_a_new_space(run_jobs, settings):
    for number in range(5):
        make(PageExtra, f"trout {number}")
    run_jobs()
    [spec] = specs.of(PageExtra)
    settings.PGEMBED_PROVIDERS = {
        "default": {**settings.PGEMBED_PROVIDERS["default"], "MODEL": "another"}
    }
    spaces.ensure(spec, using="default")
    Worker.objects.create(host="here", pid=7, version="1", specs=[spec.key])
    for row in PageExtra.objects.all():
        change(row)
    run_jobs()
    for row in PageExtra.objects.all():
        fail(row, "failed")

    [seen] = status.overview(using="default", specs=[spec]).specs

    assert found(PageExtra) == seen.active.coverage.covered == 0
    assert seen.building.coverage.covered == 5
    assert "not searched until" not in seen.verdict.reason


@pytest.mark.parametrize("state", [is_pending, is_running])
def test_a_row_that_is_hidden_until_its_change_is_embedded_is_no_gap(run_jobs, state):
    row = make(PageExtra, "trout")
    run_jobs()
    [spec] = specs.of(PageExtra)
    Worker.objects.create(host="here", pid=7, version="1", specs=[spec.key])
    state(row)

    [seen] = status.overview(using="default", specs=[spec]).specs

    assert found(PageExtra) == seen.active.coverage.covered == 0
    assert seen.verdict.state == "fresh"
    assert seen.verdict.reason.startswith("Every other row is found with its current text: ")


def test_a_share_is_never_rounded_up_to_all():
    assert status.Coverage(rows=1_000_000, covered=999_999).percent == 99.9
