"""Re-embed all rows in the admin: the command's own backfill, with its bound and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from pgembed_django.admin import scopes
from pgembed_django.maintenance import backfill, reconcile
from pgembed_django.models import Job, Lap
from tests.app.models import Article, ArticleEmbedding
from tests.db.test_admin import hidden, said
from tests.db.test_operator_commands import KEY, run

pytestmark = [
    pytest.mark.usefixtures("without_dead_rows"),
    pytest.mark.django_db,
    pytest.mark.urls("tests.db.test_admin"),
]


@pytest.fixture
def operator(make_client: Callable[..., Client]) -> Client:
    return make_client("pgembed.view_job", "pgembed.operate_job")


@pytest.fixture
def articles(
    make_article: Callable[..., Article],
    run_jobs: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> list[Article]:
    """Three rows that are embedded. A page of a run is two."""
    monkeypatch.setattr(scopes, "BATCH", 2)
    made = [make_article() for _ in range(3)]
    run_jobs()
    Job.objects.all().delete()
    return made


class Run:
    """What a person does: open the page that asks, press its button, and let it go on."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.where = reverse("admin:pgembed_job_all", args=["reembed"])
        self.page: HttpResponse = client.get(self.where, {"scope": "rows", "spec": KEY})

    @property
    def text(self) -> str:
        return self.page.content.decode()

    def go_on(self, **also: str) -> str:
        self.page = self.client.post(self.where, {**hidden(self.page), **also})
        return said(self.page) if self.page.status_code == 302 else self.text


def test_large_numbers_are_told_with_commas(operator, articles):
    assert "2 of 20,000 so far." in Run(operator).go_on(total="20000")


def test_it_goes_on_when_the_workers_have_made_room(operator, articles, run_jobs, monkeypatch):
    monkeypatch.setattr(reconcile, "MAX_BACKLOG", 2)
    run = Run(operator)

    assert "2 of 3 so far." in run.go_on()
    told = run.go_on()

    assert "2 of 3 so far." in told
    assert "It goes on when fewer than 2 rows wait to be embedded." in told
    assert 'data-pgembed-continue="3"' in told
    assert Job.objects.filter(status="pending", kind="backfill").count() == 2
    run_jobs()
    assert run.go_on() == "To be embedded again 3."
    # A batch that did nothing is not logged.
    messages = LogEntry.objects.order_by("id").values_list("change_message", flat=True)
    assert list(messages) == ["To be embedded again 2.", "To be embedded again 1."]


def test_a_run_that_was_left_goes_on_where_it_was(operator, articles):
    Run(operator).go_on()

    again = Run(operator)

    assert "Re-embed 1 row?" in again.text
    assert f"A run before this one has come to the row {articles[1].pk}" in again.text
    assert again.go_on() == "To be embedded again 1."
    assert not Lap.objects.get().cursor
    assert "Re-embed 3 rows?" in Run(operator).text


def test_or_begins_anew(operator, articles):
    Run(operator).go_on()

    again = Run(operator)

    assert 'name="restart"' in again.text
    assert "2 of 2 so far." in again.go_on(restart="1")
    assert "restart" not in hidden(again.page)
    assert again.go_on() == "To be embedded again 3."


def test_it_begins_anew_also_where_workers_have_to_make_room_first(
    operator, articles, run_jobs, monkeypatch
):
    monkeypatch.setattr(reconcile, "MAX_BACKLOG", 2)
    Run(operator).go_on()
    again = Run(operator)

    assert "It goes on when fewer than 2 rows wait" in again.go_on(restart="1")
    run_jobs()

    assert "To be embedded again 2." in again.go_on()


def test_the_command_goes_on_with_it_too(operator, articles):
    Run(operator).go_on()

    told = run("embed_backfill", KEY, "--no-wait", "--force")

    assert f"continuing after {articles[1].pk}" in told
    assert "checked 1 row, 1 queued" in told


def test_another_backfill_of_the_model_does_not_set_it_back(operator, articles):
    asked = Run(operator)
    asked.go_on()

    run("embed_backfill", KEY, "--no-wait", "--force", "--where", f"pk={articles[0].pk}")

    assert asked.go_on() == "To be embedded again 3."


def test_what_the_command_has_brought_to_its_end_does_not_begin_anew(operator, articles):
    asked = Run(operator)
    asked.go_on()

    run("embed_backfill", KEY, "--no-wait", "--force")

    assert asked.go_on() == "To be embedded again 2."
    assert "2 of 3 so far." in Run(operator).go_on()


def test_to_ask_writes_nothing(operator, articles):
    Run(operator)

    assert not Lap.objects.exists()


@pytest.fixture
def writer(
    transactional_db: None,
    articles: list[Article],
    connect: Callable[..., psycopg.Connection],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[psycopg.Connection]:
    """A session that is writing the second row."""
    monkeypatch.setattr(backfill, "TRIES", 2)
    other = connect()
    other.execute("UPDATE app_article SET title = 'x' WHERE id = %s", [articles[1].pk])
    yield other
    other.rollback()


def outdated() -> set[Any]:
    rows = ArticleEmbedding.objects.filter(chunk_digest=b"")
    return set(rows.values_list("source_id", flat=True))


def test_it_comes_back_to_a_row_that_is_being_written(writer, articles, operator):
    run = Run(operator)
    run.go_on()
    run.go_on()
    told = run.go_on()
    assert "1 row is locked by an open write" in told
    writer.rollback()

    assert run.go_on() == "To be embedded again 3."
    assert outdated() == {article.pk for article in articles}


def test_and_leaves_it_to_the_next_run_after_a_while(writer, articles, operator):
    run = Run(operator)
    for _ in range(3):
        run.go_on()

    assert run.go_on() == "To be embedded again 2, locked by an open write 1 (try again)."
    writer.rollback()
    again = Run(operator)
    assert "Re-embed 1 row?" in again.text
    assert again.go_on() == "To be embedded again 1."
    assert outdated() == {article.pk for article in articles}
