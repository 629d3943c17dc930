"""The overview, the failures by kind, and the buttons that operate."""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.db import connection
from django.db.models.functions import Now
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.http import urlencode

from pgembed_django.admin import overview
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Pause, Ripple, Worker
from pgembed_django.queue import jobs
from pgembed_django.queue.work import Work
from tests.app.models import Article, Page
from tests.conftest import no_more_threads
from tests.db.conftest import claim
from tests.played.provider import PlayedProvider

pytestmark = [pytest.mark.usefixtures("without_dead_rows"), pytest.mark.django_db]

OVERVIEW = "/admin/pgembed/"
FAILURES = "/admin/pgembed/job/failures/"
KEY = "app.ArticleEmbedding"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def operator(make_client: Callable[..., Client]) -> Client:
    return make_client(
        "pgembed.view_job", "pgembed.retry_job", "pgembed.dismiss_job", "pgembed.operate_job"
    )


def fail(error: str, article: Article) -> Job:
    [held] = [held for held in claim() if held.source_pk == str(article.pk)]
    assert jobs.fail(held, error, using="default") == "failed"
    return Job.objects.get(pk=held.id)


def text(client: Client, where: str = OVERVIEW) -> str:
    response = client.get(where)
    assert response.status_code == 200
    return response.content.decode()


def press(client: Client, verb: str, name: object, what: str = "") -> HttpResponse:
    where = reverse("admin:pgembed_job_operate", args=[verb])
    return client.post(where, {"name": str(name), "what": what})


def said(response: HttpResponse) -> str:
    assert (response.status_code, response["Location"]) == (302, OVERVIEW)
    return str(list(get_messages(response.wsgi_request))[-1])


# The overview


def test_the_overview_tells_a_fresh_spec_from_one_that_failed(
    viewer: Client, make_article: Callable[..., Article], run_jobs: Callable[[], int]
) -> None:
    Worker.objects.create(host="host-1", pid=17, version="1", specs=[KEY])
    make_article()
    run_jobs()
    assert "<strong>Fresh.</strong> Every row is found with its current text." in text(viewer)

    fail("too bad", make_article())

    page = text(viewer)
    assert "<strong>Degraded.</strong> 1 row has failed" in page
    assert "host-1:17" in page
    assert "50 % of 2 rows" in page


def test_changes_of_related_rows_are_shown_while_they_are_expanded(viewer: Client) -> None:
    Ripple.objects.create(spec=KEY, path="pk", key="1")
    Ripple.objects.create(spec=KEY, path="", key="", cursor="7", units=12_000)
    Ripple.objects.update(created_at=Now() - timedelta(minutes=5))

    page = text(viewer)

    assert "related changes to expand: 2, the oldest for 5 min; 12,000 jobs so far" in page


def test_staff_that_may_not_see_jobs_sees_no_overview(make_client: Callable[..., Client]) -> None:
    page = text(make_client("pgembed.view_worker"))

    assert KEY not in page
    assert "data-pgembed-refresh" not in page


def test_what_workers_and_providers_say_is_shown_and_escaped(viewer: Client) -> None:
    Worker.objects.create(
        host=HOSTILE,
        pid=17,
        version="1",
        specs=[spec.key for spec in specs.all()],
        paused={"default": f"{HOSTILE} is down"},
        paused_seconds={"default": 60.0},
        aside={KEY: f"{HOSTILE} is no column"},
    )
    Job.objects.create(spec=KEY, source_pk="1")
    Pause.objects.create(what="provider", name=HOSTILE, by=HOSTILE)

    page = text(viewer)

    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; is down" in page
    assert f"<td>{KEY}: &lt;script&gt;alert(1)&lt;/script&gt; is no column<br></td>" in page


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(100, "<strong>Down.</strong> Next try in 2 min. No route."), (-5, "Next try in 0 ms.")],
)
def test_when_a_provider_is_tried_again_is_told_from_now_on(
    viewer: Client, run_jobs: Callable[[], int], seconds: float, told: str
) -> None:
    run_jobs()
    Worker.objects.create(
        host="host-1",
        pid=17,
        version="1",
        specs=[spec.key for spec in specs.all()],
        paused={"default": "No route."},
        paused_seconds={"default": seconds},
    )

    assert told in text(viewer)


@pytest.mark.parametrize(
    ("units_per_second", "told"), [(0, "0"), (0.035, "2.1"), (0.17, "10"), (148.3, "8,898")]
)
def test_a_rate_is_told_in_whole_rows_but_where_they_are_few(
    units_per_second: float, told: str
) -> None:
    assert overview.per_minute(units_per_second) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(None, "-"), (0.0002, "0 ms"), (0.0631, "63 ms"), (0.9996, "1 s"), (4, "4 s")],
)
def test_a_short_time_is_told_in_whole_milliseconds(seconds: float | None, told: str) -> None:
    assert overview.duration(seconds) == told


def test_a_wait_that_is_not_known_is_a_dash(viewer: Client) -> None:
    assert "p50 -" not in text(viewer)


def test_a_time_of_day_has_its_time_zone(viewer: Client) -> None:
    assert re.search(r">As of \d\d:\d\d:\d\d [A-Z]+<", text(viewer))


def test_a_viewer_sees_no_button_and_an_operator_does(viewer: Client, operator: Client) -> None:
    Worker.objects.create(host="host-1", pid=17, version="1")

    assert "<form" not in text(viewer).partition('id="content"')[2]
    page = text(operator)
    for verb in ("pause", "probe"):
        assert reverse("admin:pgembed_job_operate", args=[verb]) in page


def test_the_charts_show_the_last_hour_or_day_in_words_too(
    viewer: Client, make_article: Callable[..., Article], make_worker: Callable[..., Work]
) -> None:
    make_article()
    worker = make_worker()
    while worker.step():
        pass
    worker.held.tally.flush(using="default")

    assert "1 in the last hour, at most 1 in a minute" in text(viewer)
    assert "bag-of-words, 64 dimensions" in text(viewer)
    assert "in a quarter of an hour" in text(viewer, f"{OVERVIEW}?hours=24")
    assert "in a minute" in text(viewer, f"{OVERVIEW}?hours=nonsense")
    assert text(viewer).count("<svg viewBox=") == 3


def test_the_overview_takes_few_queries(
    make_client: Callable[..., Client], make_article: Callable[..., Article]
) -> None:
    client = make_client(
        "pgembed.view_job", "pgembed.operate_job", "pgembed.view_space", "pgembed.view_worker"
    )
    fail("too bad", make_article())
    make_article()

    with CaptureQueriesContext(connection) as queries:
        text(client)

    assert len(queries) <= 12


# Failures by kind


def test_failures_are_grouped_by_kind_with_links_to_do_something(
    operator: Client, viewer: Client, make_article: Callable[..., Article]
) -> None:
    for number in range(3):
        last = fail(f"{HOSTILE} gave up after {number} s", make_article())
    Page.objects.create(slug="page", body="text")
    [held] = claim()
    jobs.fail(held, "no page", using="default")

    page = text(operator, FAILURES)

    assert HOSTILE not in page
    assert page.count('<th scope="row">') == 2
    assert page.index("gave up after #") < page.index("no page")
    assert f"/admin/pgembed/job/{last.pk}/change/" in page
    button = 'name="action" value="retry"'
    assert page.count(button) == 2
    assert button not in text(viewer, FAILURES)
    assert "no page" not in text(viewer, f"{FAILURES}?spec={KEY}")


def test_it_is_told_how_long_ago_a_kind_began_and_how_long_ago_it_was_last_seen(
    viewer: Client, make_article: Callable[..., Article]
) -> None:
    for number, ago in enumerate((timedelta(hours=3), timedelta(minutes=2))):
        failed = fail(f"gave up after {number} s", make_article())
        Job.objects.filter(pk=failed.pk).update(finished_at=Now() - ago)

    shown = text(viewer, FAILURES).replace("\xa0", " ")
    assert shown.index("2 minutes ago") < shown.index("3 hours ago")


def test_the_jobs_of_one_kind_are_listed_and_retried_alone(
    operator: Client, make_article: Callable[..., Article]
) -> None:
    fail("gave up after 1 s", make_article())
    other = fail("another kind", make_article())
    query = {"status": "failed", "spec": KEY, "signature": Job.objects.first().signature}
    where = f"/admin/pgembed/job/?{urlencode(query)}"
    assert html.escape(where) in text(operator, FAILURES)

    listed = operator.get(where).context["cl"].result_list
    assert [job.last_error for job in listed] == ["gave up after 1 s"]
    all_of_them = {"action": "retry", "_selected_action": "all", "select_across": "1"}
    asked = operator.post(where, all_of_them)
    operator.post(where, {**all_of_them, **dict(asked.context["form"])})

    assert list(Job.objects.filter(status="failed", settled_at=None)) == [other]


def test_failures_need_the_permission(make_client: Callable[..., Client]) -> None:
    assert make_client().get(FAILURES).status_code == 403
    assert "There are no open failures." in text(make_client("pgembed.view_job"), FAILURES)


# Buttons


@pytest.mark.parametrize("verb", overview.VERBS)
def test_buttons_need_a_post_and_the_permission(
    make_client: Callable[..., Client], operator: Client, verb: str
) -> None:
    allowed_but_one = make_client("pgembed.view_job", "pgembed.retry_job", "pgembed.dismiss_job")

    assert press(allowed_but_one, verb, KEY, "spec").status_code == 403
    where = reverse("admin:pgembed_job_operate", args=[verb])
    assert operator.get(where).status_code == 405
    without_token = Client(enforce_csrf_checks=True)
    without_token.force_login(User.objects.get(user_permissions__codename="operate_job"))
    assert without_token.post(where, {"name": KEY, "what": "spec"}).status_code == 403
    assert not LogEntry.objects.exists()


def test_a_spec_is_paused_seen_to_be_and_resumed(operator: Client, viewer: Client) -> None:
    assert said(press(operator, "pause", KEY, "spec")).startswith(f"Paused {KEY}.")
    assert said(press(operator, "pause", KEY, "spec")) == f"Already paused: {KEY}."
    assert "Paused by user" in text(viewer)

    assert said(press(operator, "resume", KEY, "spec")).startswith(f"Resumed {KEY}.")
    assert said(press(operator, "resume", KEY, "spec")) == f"Not paused: {KEY}."

    assert not Pause.objects.exists()
    assert LogEntry.objects.filter(object_repr=KEY).count() == 4


@pytest.mark.parametrize(
    ("verb", "name", "what"),
    [
        ("pause", "nonsense", "spec"),
        ("pause", "nonsense", "provider"),
        ("pause", KEY, "nonsense"),
        ("resume", KEY, "nonsense"),
        ("probe", "nonsense", ""),
        ("nonsense", KEY, "spec"),
    ],
)
def test_what_does_not_exist_is_not_found(
    operator: Client, verb: str, name: str, what: str
) -> None:
    assert press(operator, verb, name, what).status_code == 404


def test_a_probe_tells_what_the_provider_answers(
    operator: Client, provider: type[PlayedProvider]
) -> None:
    asked = "The provider default (bag-of-words)"
    answered = said(press(operator, "probe", "default"))
    assert re.fullmatch(rf"{re.escape(asked)} answered in \d+ ms with 64 dimensions\.", answered)

    provider.is_down = True

    assert said(press(operator, "probe", "default")) == f"{asked}: The server is down."


def test_a_probe_does_not_wait_for_longer_than_a_person_does(
    operator: Client, provider: type[PlayedProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "PROBE_SECONDS", 0.01)
    gate = threading.Event()
    monkeypatch.setattr(PlayedProvider, "probe", lambda self: gate.wait(30))

    try:
        assert "did not answer within" in said(press(operator, "probe", "default"))
    finally:
        gate.set()


def test_a_probe_that_no_thread_can_be_started_for_says_so(
    operator: Client, provider: type[PlayedProvider]
) -> None:
    with no_more_threads():
        answered = said(press(operator, "probe", "default"))

    assert "can start no thread" in answered


def test_a_probe_tells_of_a_model_that_the_server_does_not_list(
    operator: Client, provider: type[PlayedProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlayedProvider, "doubt", lambda self: "It lists 'bag'.")

    answered = said(press(operator, "probe", "default"))

    assert answered.endswith("ms with 64 dimensions. It lists 'bag'.")


def test_a_provider_that_cannot_be_built_says_why(operator: Client, settings: object) -> None:
    settings.PGEMBED_PROVIDERS = {"default": {"BACKEND": "no.such.thing"}}  # type: ignore[attr-defined]

    assert "has no MODEL" in said(press(operator, "probe", "default"))


def release(client: Client, worker: int) -> HttpResponse:
    """Follow the overview's link, and confirm."""
    where = f"/admin/pgembed/job/?status=running&worker_id={worker}"
    assert html.escape(where) in text(client)
    everything = {"action": "release", "_selected_action": "all", "select_across": "1"}
    asked = client.post(where, everything)
    return client.post(where, {**everything, **dict(asked.context["form"])})


@pytest.mark.django_db(transaction=True)
def test_a_release_that_a_writer_keeps_from_all_is_a_warning(
    operator: Client, make_article: Callable[..., Article], second_connection: psycopg.Connection
) -> None:
    make_article()
    claim(worker_id=99)
    second_connection.execute("SELECT FROM pgembed_job FOR UPDATE")

    response = release(operator, 99)

    [message] = get_messages(response.wsgi_request)
    assert str(message) == "1 locked by an open write (try again)."
    assert message.level_tag == "warning"


def test_what_a_dead_worker_holds_is_released(
    operator: Client, make_article: Callable[..., Article]
) -> None:
    make_article()
    make_article()
    claim(worker_id=99)
    assert "worker 99, gone" in text(operator)

    response = release(operator, 99)

    assert str(list(get_messages(response.wsgi_request))[-1]) == "2 jobs released."
    assert set(Job.objects.values_list("status", "crashes")) == {("pending", 1)}


# Charts


def test_counts_are_bars_and_what_is_unknown_is_left_out() -> None:
    drawn = overview.chart({"completed": [0, 37, None]})

    [(name, _, path)] = drawn["paths"]
    assert (name, path.count("M"), drawn["largest"]) == ("completed", 1, "37")


def test_durations_are_a_line_in_each_bucket_but_where_nothing_is_known() -> None:
    drawn = overview.chart({"p50": [0.0, None, 90.0]}, is_duration=True)

    [(_, _, path)] = drawn["paths"]
    assert (path.count("M"), drawn["largest"]) == (2, "2 min")
    assert overview.chart({"p50": []}, is_duration=True)["largest"] == ""
