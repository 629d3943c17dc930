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

from pgembed_django.admin import actions
from pgembed_django.models import Job, ScanCursor
from pgembed_django.spaces import reconcile
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
    """Three rows that are embedded. A request has time for two."""
    monkeypatch.setattr(actions, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(actions, "MAX_SECONDS", 0)
    made = [make_article() for _ in range(3)]
    run_jobs()
    Job.objects.all().delete()
    return made


class Run:
    """What a person does: open the page that asks, and press its button as often as it is there."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.where = f"{reverse('admin:pgembed_job_rows')}?spec={KEY}"
        self.page: HttpResponse = client.get(self.where)

    @property
    def text(self) -> str:
        return self.page.content.decode()

    def press(self) -> str:
        self.page = self.client.post(self.where, hidden(self.page))
        return said(self.page) if self.page.status_code == 302 else self.text


def test_every_row_is_embedded_anew_as_many_as_there_is_time_for(operator, articles, run_jobs):
    asked = Run(operator)
    assert "Re-embed 3 rows?" in asked.text

    told = asked.press()

    assert "2 queued to be embedded again." in told
    assert "<h1>1 row left</h1>" in told
    assert "Re-embed the rest" in told
    assert asked.press() == "1 queued to be embedded again."
    assert Job.objects.filter(status="pending", kind="backfill").count() == 3
    assert run_jobs() == 3
    messages = LogEntry.objects.order_by("id").values_list("change_message", flat=True)
    assert list(messages) == ["2 queued to be embedded again.", "1 queued to be embedded again."]


def test_with_time_enough_it_takes_one_request(operator, articles, monkeypatch):
    monkeypatch.setattr(actions, "MAX_SECONDS", 600)

    assert Run(operator).press() == "3 queued to be embedded again."


def test_it_continues_when_the_workers_have_made_room(operator, articles, run_jobs, monkeypatch):
    monkeypatch.setattr(reconcile, "MAX_BACKLOG", 2)
    asked = Run(operator)
    asked.press()

    told = asked.press()

    assert "nothing to do." in told
    assert "Continue when fewer than 2 rows wait to be embedded." in told
    assert Job.objects.filter(status="pending", kind="backfill").count() == 2
    assert LogEntry.objects.count() == 1  # a request that did nothing is not logged
    run_jobs()
    assert asked.press() == "1 queued to be embedded again."


def test_a_run_that_was_left_continues_where_it_was(operator, articles):
    Run(operator).press()

    again = Run(operator)

    assert "Re-embed 1 row?" in again.text
    assert f"An earlier run stopped after row {articles[1].pk}." in again.text
    assert again.press() == "1 queued to be embedded again."
    assert not ScanCursor.objects.get(scan=ScanCursor.Scan.BACKFILL).cursor
    assert "Re-embed 3 rows?" in Run(operator).text


def test_the_command_continues_it_too(operator, articles):
    Run(operator).press()

    told = run("embed_backfill", KEY, "--no-wait", "--force")

    assert f"continuing after {articles[1].pk}" in told
    assert "checked 1 row, 1 queued" in told


def test_another_backfill_of_the_model_does_not_set_it_back(operator, articles):
    asked = Run(operator)
    asked.press()

    run("embed_backfill", KEY, "--no-wait", "--force", "--where", f"pk={articles[0].pk}")

    assert asked.press() == "1 queued to be embedded again."


def test_what_the_command_has_completed_does_not_begin_again(operator, articles):
    asked = Run(operator)
    asked.press()

    run("embed_backfill", KEY, "--no-wait", "--force")

    assert asked.press() == "nothing to do."
    assert "<h1>1 row left</h1>" in Run(operator).press()


def test_to_ask_writes_nothing(operator, articles):
    Run(operator)

    assert not ScanCursor.objects.filter(scan=ScanCursor.Scan.BACKFILL).exists()


def test_a_spec_that_does_not_exist_is_not_found_and_a_viewer_may_not(operator, viewer):
    where = reverse("admin:pgembed_job_rows")

    assert operator.get(f"{where}?spec=nonsense").status_code == 404
    assert viewer.get(f"{where}?spec={KEY}").status_code == 403
    assert viewer.post(f"{where}?spec={KEY}").status_code == 403


@pytest.fixture
def writer(
    transactional_db: None, articles: list[Article], connect: Callable[..., psycopg.Connection]
) -> Iterator[psycopg.Connection]:
    """A session that is writing the second row."""
    other = connect()
    other.execute("UPDATE app_article SET title = 'x' WHERE id = %s", [articles[1].pk])
    yield other
    other.rollback()


def outdated() -> set[Any]:
    rows = ArticleEmbedding.objects.filter(chunk_digest=b"")
    return set(rows.values_list("source_id", flat=True))


def test_a_row_that_is_being_written_is_skipped_and_comes_last(
    writer, articles, operator, monkeypatch
):
    monkeypatch.setattr(actions, "MAX_SECONDS", 600)
    asked = Run(operator)

    told = asked.press()

    assert "2 queued to be embedded again, 1 locked by an open write (try again)." in told
    assert "<h1>1 row left</h1>" in told
    assert "1 locked by an open write (try again)." in asked.press()
    writer.rollback()
    assert asked.press() == "1 queued to be embedded again."
    assert outdated() == {article.pk for article in articles}
