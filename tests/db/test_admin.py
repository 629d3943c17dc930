"""The admin through Django's test client: who sees what, what Retry and Dismiss do and say."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import psycopg
import pytest
from django.contrib import admin
from django.contrib.admin import AdminSite
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.contrib.messages import get_messages
from django.db import connection
from django.db.models.functions import Now
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path, reverse
from django.utils.http import urlencode

from pgembed_django.admin import JobAdmin, actions, lists
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Space, Worker
from pgembed_django.queue import jobs
from tests.app.models import Article, Page
from tests.conftest import embedded_text

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]

LIST = "/admin/pgembed/job/"
HOSTILE = "<script>alert('x')</script> \"quoted\" & {{ settings.SECRET_KEY }} %s\n\tsecond line"
UNREADABLE = "The server is down."

# A site of the user's own, where the source rows have pages.
operators = AdminSite(name="operators")
operators.register(Job, JobAdmin)
operators.register(Article)
operators.register(Page)


class OwnArticleAdmin(admin.ModelAdmin):
    """Shows each author their own rows."""

    def has_view_permission(self, request, obj=None):
        return obj is None or obj.author == request.user.get_username()

    has_change_permission = has_view_permission


# One where who may view a row depends on the row.
authors = AdminSite(name="authors")
authors.register(Job, JobAdmin)
authors.register(Article, OwnArticleAdmin)

urlpatterns = [
    path("admin/", admin.site.urls),
    path("operators/", operators.urls),
    path("authors/", authors.urls),
]


@pytest.fixture
def operator(make_client: Callable[..., Client]) -> Client:
    return make_client("pgembed.view_job", "pgembed.retry_job", "pgembed.dismiss_job")


@pytest.fixture
def make_failure(make_article: Callable[..., Article]) -> Callable[..., Job]:
    """Failed jobs, as a worker leaves them."""

    def make(error: str = UNREADABLE, *, of: Article | None = None) -> Job:
        article = make_article() if of is None else of
        [claim] = [
            claim
            for claim in jobs.claim(
                [specs.of(Article)[0].key],
                limit=100,
                lease=jobs.Lease(1, 60),
                using="default",
            )
            if claim.source_pk == str(article.pk)
        ]
        assert jobs.fail(claim, error, using="default") == "failed"
        return Job.objects.get(pk=claim.id)

    return make


def act(client: Client, action: str, *selected: int | str, where: str = LIST, **data: str) -> str:
    """Run an action on jobs and return what the page said."""
    return said(client.post(where, {"action": action, "_selected_action": selected, **data}))


def said(response: HttpResponse) -> str:
    """Return what the next page will say."""
    assert response.status_code == 302
    # Those of earlier requests are there too, as no page has shown them yet.
    return str(list(get_messages(response.wsgi_request))[-1])


def hidden(response: HttpResponse) -> dict[str, str]:
    """Return the hidden inputs of the page's own form."""
    page = response.content.decode().partition('id="content"')[2]
    inputs = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page)
    return {name: html.unescape(value) for name, value in inputs}


def text(client: Client, where: str = LIST) -> str:
    response = client.get(where)
    assert response.status_code == 200
    return response.content.decode()


def act_on_all(client: Client, action: str, **query: str) -> tuple[str, HttpResponse]:
    """Choose an action for all that match. Return the URL of the form, and the question."""
    where = f"{LIST}?{urlencode(query)}"
    everything = {"action": action, "_selected_action": "all", "select_across": "1"}
    return where, client.post(where, everything)


def detail(job: Job) -> str:
    return f"{LIST}{job.pk}/change/"


# Who sees what


@pytest.mark.parametrize("url", [LIST, "/admin/pgembed/space/", "/admin/pgembed/worker/"])
def test_the_anonymous_are_sent_to_the_login(client: Client, url: str) -> None:
    response = client.get(url)

    assert response.status_code == 302
    assert "/admin/login/" in response["Location"]


def test_staff_without_the_permission_sees_no_jobs(make_client: Callable[..., Client]) -> None:
    assert make_client().get(LIST).status_code == 403


def test_a_viewer_sees_failures_but_no_button(
    viewer: Client, make_failure: Callable[..., Job]
) -> None:
    job = make_failure()

    for page in (text(viewer), text(viewer, detail(job))):
        assert UNREADABLE in page
        assert str(job) in page
        assert 'value="retry"' not in page
        assert 'value="dismiss"' not in page


@pytest.mark.parametrize("action", ["retry", "dismiss"])
def test_a_viewer_who_posts_an_action_changes_nothing(
    viewer: Client, make_failure: Callable[..., Job], action: str
) -> None:
    job = make_failure()

    viewer.post(LIST, {"action": action, "_selected_action": [job.pk]})

    job.refresh_from_db()
    assert job.settled_at is None
    assert not Job.objects.filter(status="pending").exists()


@pytest.mark.parametrize(("may", "may_not"), [("retry", "dismiss"), ("dismiss", "retry")])
def test_each_action_has_a_permission_of_its_own(
    make_client: Callable[..., Client], make_failure: Callable[..., Job], may: str, may_not: str
) -> None:
    client = make_client("pgembed.view_job", f"pgembed.{may}_job")
    job = make_failure()

    for page in (text(client), text(client, detail(job))):
        assert f'value="{may}"' in page
        assert f'value="{may_not}"' not in page
    client.post(LIST, {"action": may_not, "_selected_action": [job.pk]})
    job.refresh_from_db()
    assert job.settled_at is None


def test_nobody_adds_edits_or_deletes(
    admin_client: Client, make_failure: Callable[..., Job]
) -> None:
    job = make_failure()

    assert admin_client.get(f"{LIST}add/").status_code == 403
    assert admin_client.post(detail(job), {"status": "pending"}).status_code == 403
    assert admin_client.get(f"{LIST}{job.pk}/delete/").status_code == 403
    assert "delete_selected" not in text(admin_client)
    assert set(
        Permission.objects.filter(content_type__model="job").values_list("codename", flat=True)
    ) == {
        "view_job",
        "retry_job",
        "dismiss_job",
        "operate_job",
    }


# What is shown


def test_a_hostile_error_is_shown_in_full_and_escaped(
    operator: Client, make_failure: Callable[..., Job]
) -> None:
    job = make_failure(HOSTILE + "é" * 500)

    for page in (text(operator), text(operator, detail(job))):
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;" in page
    assert "é" * 500 in text(operator, detail(job))
    assert "é" * 100 not in text(operator)


def test_a_hostile_key_is_escaped(admin_client: Client) -> None:
    Page.objects.create(slug="<b>key</b>&'\"/?#", body="text")
    job = Job.objects.get(spec=specs.of(Page)[0].key)

    for page in (
        text(admin_client, reverse("operators:pgembed_job_changelist")),
        text(admin_client, reverse("operators:pgembed_job_change", args=[job.pk])),
    ):
        assert "<b>key" not in page
        assert "&lt;b&gt;key" in page


def test_the_source_row_is_linked_and_its_page_is_for_those_who_may_view_it(
    make_client: Callable[..., Client], make_failure: Callable[..., Job]
) -> None:
    job = make_failure()
    where = f"/operators/app/article/{job.source_pk}/change/"
    link = f'<a href="{where}">article {job.source_pk}</a>'
    lists = reverse("operators:pgembed_job_changelist")

    for permission, status in (("app.view_article", 200), ("app.view_page", 403)):
        client = make_client("pgembed.view_job", permission)
        assert link in text(client, lists)
        assert client.get(where).status_code == status


def test_the_link_to_a_source_row_with_a_strange_key_leads_to_it(admin_client: Client) -> None:
    page = Page.objects.create(slug="a/b_c?d#e", body="text")

    shown = text(admin_client, reverse("operators:pgembed_job_changelist"))

    url = reverse("operators:app_page_change", args=[admin.utils.quote(page.pk)])
    assert f'href="{url}"' in shown
    assert admin_client.get(url).status_code == 200


def test_a_row_without_a_page_or_without_a_spec_is_no_link(
    viewer: Client, make_failure: Callable[..., Job]
) -> None:
    make_failure()
    Job.objects.create(spec="gone.Embedding", source_pk="1")

    shown = text(viewer)

    assert "gone.Embedding 1" in shown
    assert "/app/article/" not in shown


def test_the_status_says_what_a_job_waits_for(
    operator: Client, make_article: Callable[..., Article], make_failure: Callable[..., Job]
) -> None:
    settled, dismissed = make_failure(), make_failure()
    jobs.retry_failed([settled.pk], using="default")
    Job.objects.filter(status="pending").delete()
    jobs.dismiss([dismissed.pk], using="default")
    make_article()
    [claim] = jobs.claim([settled.spec], limit=1, lease=jobs.Lease(1, 60), using="default")
    jobs.retry(claim, "later", max_attempts=5, delay_seconds=3600, using="default")

    shown = text(operator)

    assert "failed, settled since" in shown
    assert "dismissed, parked until" in shown
    assert "pending, not before" in shown


def test_a_job_without_an_error_has_a_page_without_buttons(
    operator: Client, make_article: Callable[..., Article]
) -> None:
    make_article()

    shown = text(operator, detail(Job.objects.get()))

    assert 'value="retry"' not in shown
    assert "pgembed-error" not in shown


# Filters, search, order, size


def test_the_filters_find_by_status_and_spec(
    viewer: Client, make_article: Callable[..., Article], make_failure: Callable[..., Job]
) -> None:
    failed, dismissed = make_failure(), make_failure()
    jobs.dismiss([dismissed.pk], using="default")
    make_article()
    Page.objects.create(slug="page", body="text")

    def shown(query: str) -> list[str]:
        found = viewer.get(f"{LIST}?{query}").context["cl"].result_list
        return [job.source_pk for job in found]

    assert shown("status=failed") == [failed.source_pk]
    assert shown("status=dismissed") == [dismissed.source_pk]
    assert shown("status=succeeded") == shown("status=running") == shown("status=settled") == []
    assert shown("spec=app.PageEmbedding") == ["page"]
    assert len(shown("status=pending")) == 2
    assert len(shown("status=nonsense")) == 4
    assert shown("spec=nobody") == []


def test_the_newest_failure_comes_first(viewer: Client, make_failure: Callable[..., Job]) -> None:
    made = [make_failure() for _ in range(3)]

    found = viewer.get(f"{LIST}?status=failed").context["cl"].result_list

    assert list(found) == made[::-1]


@pytest.mark.parametrize(
    "asked", ["blog {0}", "{0}", "app.PageEmbedding {0}", "app.PageEmbedding", " {0} "]
)
def test_a_unit_is_found_by_its_key_its_spec_or_both(viewer: Client, asked: str) -> None:
    for slug in ("a key", "another key"):
        Page.objects.create(slug=slug, body="text")

    found = viewer.get(LIST, {"q": asked.format("a key")}).context["cl"].result_list

    slugs = {job.source_pk for job in found}
    expected = {
        "blog {0}": set(),
        "app.PageEmbedding": {"a key", "another key"},
    }
    assert slugs == expected.get(asked, {"a key"})


def test_the_list_counts_up_to_a_bound_and_says_so(
    viewer: Client, make_article: Callable[..., Article], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "MAX_COUNT", 3)
    for _ in range(4):
        make_article()

    assert viewer.get(LIST).context["cl"].result_count == 3
    assert "At most 10,000 jobs are counted and listed." in text(viewer)


def test_a_page_of_failures_takes_few_queries(
    admin_client: Client, make_failure: Callable[..., Job]
) -> None:
    for _ in range(20):
        make_failure()

    with CaptureQueriesContext(
        connection,
    ) as queries:
        text(admin_client, reverse("operators:pgembed_job_changelist") + "?status=failed")

    assert len(queries) <= 6
    assert not [query for query in queries if "DISTINCT" in query["sql"]]


def test_a_list_of_jobs_reads_no_table_of_the_applications(
    admin_client: Client, make_failure: Callable[..., Job]
) -> None:
    """So it waits for none, and deadlocks with no migration."""
    make_failure()
    Page.objects.create(slug="page", body="text")

    with CaptureQueriesContext(connection) as queries:
        text(admin_client, reverse("operators:pgembed_job_changelist"))

    assert not [query for query in queries if re.search(r'"app_\w+"', query["sql"])]


def test_what_a_job_does_not_have_is_a_dash(
    admin_client: Client, make_article: Callable[..., Article]
) -> None:
    article = make_article()
    job = Job.objects.get(source_pk=str(article.pk), status="pending")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("DELETE FROM app_article WHERE id = %s", [article.pk])

    page = text(admin_client, detail(job))

    assert "None" not in page


# Retry and Dismiss


def test_retry_makes_the_job_pending_and_a_worker_embeds_it(
    operator: Client, make_failure: Callable[..., Job], run_jobs: Callable[[], int]
) -> None:
    job = make_failure()

    assert act(operator, "retry", job.pk) == "1 job retried."

    [pending] = Job.objects.filter(status="pending")
    assert (pending.source_pk, pending.kind) == (job.source_pk, "manual_retry")
    run_jobs()
    assert embedded_text(Article.objects.get(pk=job.source_pk))
    assert not Job.objects.filter(status="failed", settled_at=None).exists()


def test_the_buttons_of_one_job_do_what_the_list_does(
    operator: Client, make_failure: Callable[..., Job]
) -> None:
    job = make_failure()
    page = text(operator, detail(job) + "?_changelist_filters=status%3Dfailed")
    assert f'formaction="{LIST}?status=failed"' in page
    assert f'name="_selected_action" value="{job.pk}"' in page

    assert act(operator, "retry", job.pk, where=f"{LIST}?status=failed") == "1 job retried."


def test_retry_says_exactly_what_happened(
    operator: Client, make_article: Callable[..., Article], make_failure: Callable[..., Job]
) -> None:
    retried, overtaken, deleted, dismissed = [make_failure() for _ in range(4)]
    Article.objects.filter(pk=overtaken.source_pk).update(title="newer")
    deleted_pk = deleted.pk
    deleted.delete()
    jobs.dismiss([dismissed.pk], using="default")
    make_article()
    waiting = Job.objects.filter(status="pending").latest("id")

    message = act(operator, "retry", retried.pk, overtaken.pk, deleted_pk, dismissed.pk, waiting.pk)

    # The dismissed one is retried too; what is due already is left alone.
    assert message == (
        "2 jobs retried, 1 superseded by newer work, 1 already settled or deleted, "
        "1 left unchanged."
    )


def test_retry_brings_newer_work_that_backs_off_forward(
    operator: Client, make_failure: Callable[..., Job], run_jobs: Callable[[], int]
) -> None:
    job = make_failure()
    article = Article.objects.get(pk=job.source_pk)
    article.title = "newer"
    article.save()
    [claim] = jobs.claim([job.spec], limit=1, lease=jobs.Lease(1, 60), using="default")
    jobs.retry(claim, "again", max_attempts=5, delay_seconds=3600, using="default")

    assert act(operator, "retry", job.pk) == "1 superseded by newer work."

    run_jobs()
    assert "newer" in (embedded_text(article) or "")


def test_a_retry_of_what_another_person_has_settled_is_gone(
    operator: Client, make_failure: Callable[..., Job]
) -> None:
    job = make_failure()
    jobs.dismiss([job.pk], using="default")

    # The page was of open failures, and no longer shows it.
    message = act(operator, "retry", job.pk, where=f"{LIST}?status=failed")
    assert message == "1 already settled or deleted."


def test_dismiss_settles_and_does_not_retry(
    operator: Client, make_failure: Callable[..., Job]
) -> None:
    kept, dismissed = make_failure(), make_failure()

    assert act(operator, "dismiss", dismissed.pk) == "1 job dismissed."

    assert [job.pk for job in Job.objects.filter(status="failed", settled_at=None)] == [kept.pk]
    assert not Job.objects.filter(status="pending").exists()


@pytest.mark.parametrize("status", ["failed", "dismissed"])
def test_failures_show_their_errors_before_what_is_the_same_in_each_row(
    viewer: Client, make_failure: Callable[..., Job], status: str
) -> None:
    job = make_failure()
    if status == "dismissed":
        jobs.dismiss([job.pk], using="default")

    page = text(viewer, f"{LIST}?status={status}")

    assert page.index("column-error") < page.index("column-state") < page.index("column-attempts")


def test_all_that_match_are_asked_about_with_their_number_then_taken_for_two_seconds_at_a_time(
    operator: Client, make_failure: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MAX_SECONDS", 0)  # one job each
    for _ in range(3):
        make_failure()
    _, asked = act_on_all(operator, "retry", status="failed", p="1")
    assert "Retry 3 jobs?" in asked.content.decode()
    assert f'action="{LIST}?status=failed"' in asked.content.decode()
    late = make_failure()

    where = f"{LIST}?status=failed"
    first = operator.post(where, hidden(asked))
    second = operator.post(where, hidden(first))
    last = operator.post(where, hidden(second))

    assert "1 job retried." in first.content.decode()
    assert "<h1>2 jobs left</h1>" in first.content.decode()
    assert "<h1>1 job left</h1>" in second.content.decode()
    assert said(last) == "1 job retried."
    assert last["Location"] == f"{LIST}?status=failed"
    assert list(Job.objects.filter(status="failed", settled_at=None)) == [late]
    assert {entry.change_message for entry in LogEntry.objects.all()} == {"1 job retried."}
    assert LogEntry.objects.count() == 3


def test_a_selection_is_worked_through_for_two_seconds_at_a_time_too(
    operator: Client, make_failure: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MAX_SECONDS", 0)
    made = [make_failure() for _ in range(3)]
    where = f"{LIST}?status=failed"
    selected = {"action": "dismiss", "_selected_action": [job.pk for job in made[1:]]}

    first = operator.post(where, selected)
    page = first.content.decode()

    assert "1 job dismissed." in page
    assert "<h1>1 job left</h1>" in page
    assert f'action="{where}"' in page
    assert said(operator.post(where, hidden(first))) == "1 job dismissed."
    assert list(Job.objects.filter(status="failed")) == made[:1]


def test_work_ends_with_the_first_job_after_two_seconds(make_failure: Callable[..., Job]) -> None:
    made = [make_failure() for _ in range(4)]
    action = actions.ACTIONS["dismiss"]
    clock = iter([10.0, 11.0, 11.9, 12.1]).__next__

    counts, rest = actions.work_through(action, made, using="default", clock=clock)

    assert (counts, rest) == ({"dismissed": 3}, made[3:])
    assert list(Job.objects.filter(status="failed")) == made[3:]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", actions.ACTIONS)
def test_no_statement_writes_and_no_transaction_locks_several_jobs(
    admin_client: Client,
    make_failure: Callable[..., Job],
    connect: Callable[..., psycopg.Connection],
    name: str,
) -> None:
    for _ in range(3):
        make_failure()
    if name == "release":
        Job.objects.update(status="pending", finished_at=None, last_error="", run_at=Now())
        jobs.claim([specs.of(Article)[0].key], limit=3, lease=jobs.Lease(1, 60), using="default")
    where, asked = act_on_all(admin_client, name)
    form = hidden(asked)
    other = connect(autocommit=True)
    written, free = [], []

    def watch(execute, sql, parameters, many, context):
        result = execute(sql, parameters, many, context)
        if re.search(r'(UPDATE|INSERT INTO|DELETE FROM) "?pgembed_job\b', str(sql)):
            written.append(context["cursor"].rowcount)
            found = other.execute("SELECT FROM pgembed_job FOR UPDATE SKIP LOCKED")
            free.append(found.rowcount)
        return result

    with connection.execute_wrapper(watch):
        response = admin_client.post(where, form)

    assert said(response).startswith("3 ")
    assert written.count(1) >= 3
    assert max(written) == 1
    assert min(free) >= 2


def test_all_that_a_look_up_of_the_links_own_finds_are_those_that_are_listed(
    operator: Client, make_failure: Callable[..., Job]
) -> None:
    make_failure("timed out")
    other = make_failure()
    where, asked = act_on_all(operator, "dismiss", status="failed", last_error__contains="timed")

    assert "Dismiss 1 job?" in asked.content.decode()
    assert said(operator.post(where, hidden(asked))) == "1 job dismissed."
    assert list(Job.objects.filter(status="failed", settled_at=None)) == [other]


def test_all_failures_of_a_spec_that_is_gone_are_its_own(
    operator: Client, make_failure: Callable[..., Job]
) -> None:
    make_failure("No such file.")
    failed = {"status": "failed", "last_error": "No such file.", "finished_at": Now()}
    Job.objects.create(spec="gone.Embedding", source_pk="1", **failed)

    _, asked = act_on_all(operator, "dismiss", status="failed", spec="gone.Embedding")

    assert "Dismiss 1 job?" in asked.content.decode()


@pytest.mark.parametrize("name", actions.ACTIONS)
def test_a_viewer_may_neither_ask_about_all_nor_do_it(
    viewer: Client, make_failure: Callable[..., Job], name: str
) -> None:
    job = make_failure()

    where, asked = act_on_all(viewer, name)
    viewer.post(where, {"action": name, "_selected_action": "all", "select_across": 1, "end": 9**9})

    assert "action" not in asked.context
    assert list(Job.objects.filter(status="failed", settled_at=None)) == [job]


@pytest.mark.parametrize("broken", [{"after": "x"}, {"end": "x"}, {"end": ""}], ids=str)
def test_a_form_that_no_page_has_sent_is_a_bad_request(admin_client: Client, broken) -> None:
    form = {"action": "retry", "_selected_action": "all", "select_across": "1", "end": "1"}
    assert admin_client.post(LIST, {**form, **broken}).status_code == 400


def test_an_error_in_the_middle_of_a_run_is_no_missing_page(
    operator: Client, make_failure: Callable[..., Job]
) -> None:
    make_failure()
    where, asked = act_on_all(operator, "dismiss")
    form = hidden(asked)

    def guard(execute, sql, *arguments):
        if sql.startswith('UPDATE "pgembed_job"'):
            raise ValueError("No updates on Sundays.")
        return execute(sql, *arguments)

    with connection.execute_wrapper(guard), pytest.raises(ValueError, match="Sundays"):
        operator.post(where, form)


def test_all_that_match_a_search_and_a_spec_are_no_others(
    operator: Client, make_failure: Callable[..., Job]
) -> None:
    chosen, other = make_failure(), make_failure()
    query = {"status": "failed", "spec": chosen.spec, "q": chosen.source_pk}

    where, asked = act_on_all(operator, "dismiss", **query)

    assert "Dismiss 1 job?" in asked.content.decode()
    assert said(operator.post(where, hidden(asked))) == "1 job dismissed."
    assert list(Job.objects.filter(status="failed", settled_at=None)) == [other]


def test_a_running_job_is_released_and_a_unit_embedded_anew(
    make_client: Callable[..., Client], make_article: Callable[..., Article]
) -> None:
    make_article()
    [held] = jobs.claim(
        [specs.of(Article)[0].key], limit=1, lease=jobs.Lease(1, 60), using="default"
    )
    client = make_client("pgembed.view_job", "pgembed.operate_job")
    page = text(client, f"{LIST}{held.id}/change/")
    assert 'value="release"' in page
    assert 'value="retry"' not in page

    assert act(client, "release", held.id) == "1 job released."
    assert act(client, "reembed", held.id) == "1 queued to be embedded again."

    assert set(LogEntry.objects.values_list("object_id", "change_message")) == {
        (str(held.id), "1 job released."),
        (str(held.id), "1 queued to be embedded again."),
    }


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("verb", ["dismiss", "release"])
def test_what_a_writer_holds_just_now_is_said_to_be_locked(
    make_client: Callable[..., Client],
    make_article: Callable[..., Article],
    make_failure: Callable[..., Job],
    second_connection: psycopg.Connection,
    verb: str,
) -> None:
    client = make_client("pgembed.view_job", "pgembed.operate_job", "pgembed.dismiss_job")
    make_article()
    [held] = jobs.claim(
        [specs.of(Article)[0].key], limit=1, lease=jobs.Lease(1, 60), using="default"
    )
    job_id = held.id if verb == "release" else make_failure().pk
    second_connection.execute("SELECT FROM pgembed_job WHERE id = %s FOR UPDATE", [job_id])

    assert act(client, verb, job_id) == "1 locked by an open write (try again)."


# The history and the text


def test_the_page_of_a_job_shows_each_try_and_the_size_of_the_text(
    admin_client: Client, make_failure: Callable[..., Job]
) -> None:
    Worker.objects.create(pk=1, host="host-1", pid=17, version="1")
    job = make_failure(HOSTILE)
    article = Article.objects.get(pk=job.source_pk)

    page = text(admin_client, detail(job))

    assert page.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;") == 2
    assert "<td>host-1:17</td>" in page
    size = len(f"{article.title}\n\n{article.contents}")
    assert f"{size} characters." in page


@pytest.mark.parametrize("site", ["admin", "operators"])
def test_the_page_of_an_open_failure_leads_to_the_others_of_its_kind(
    viewer: Client, make_failure: Callable[..., Job], site: str
) -> None:
    job = make_failure("gave up after 1 s & <b>2</b> tries")
    make_failure("another kind")
    where = reverse(f"{site}:pgembed_job_change", args=[job.pk])

    href = re.search(r'<a href="([^"]*)">All failures of this kind', text(viewer, where))

    assert href is not None
    listed = viewer.get(html.unescape(href[1]))
    assert listed.request["PATH_INFO"] == reverse(f"{site}:pgembed_job_changelist")
    assert list(listed.context["cl"].result_list) == [job]
    Job.objects.update(settled_at=Now())
    assert "All failures of this kind" not in text(viewer, where)


def test_the_text_is_shown_only_to_those_who_may_view_the_row(
    make_client: Callable[..., Client], make_failure: Callable[..., Job]
) -> None:
    job = make_failure()
    contents = Article.objects.get(pk=job.source_pk).contents
    on_own_site = reverse("operators:pgembed_job_change", args=[job.pk])

    for where in (detail(job), on_own_site):
        assert contents not in text(make_client("pgembed.view_job"), where)
        assert contents in text(make_client("pgembed.view_job", "app.view_article"), where)


def test_the_text_is_not_shown_where_the_rows_own_page_is_refused(
    viewer: Client, make_article: Callable[..., Article], make_failure: Callable[..., Job]
) -> None:
    viewers_name = viewer.get("/authors/").context["user"].username
    for author, is_shown in ((viewers_name, True), ("another", False)):
        article = make_article(author=author)
        job = make_failure(of=article)

        page = text(viewer, reverse("authors:pgembed_job_change", args=[job.pk]))

        assert (article.contents in page) == is_shown


# Spaces and workers


def test_spaces_are_shown_with_their_options(
    admin_client: Client, make_article: Callable[..., Article], run_jobs: Callable[[], int]
) -> None:
    make_article()
    run_jobs()
    space = Space.objects.get(spec=specs.of(Article)[0].key)
    Space.objects.filter(pk=space.pk).update(options={"document_prefix": "<b>doc: "})

    shown = text(admin_client, f"/admin/pgembed/space/{space.pk}/change/")

    assert "bag-of-words" in shown
    assert "&lt;b&gt;doc: " in shown
    listed = text(admin_client, "/admin/pgembed/space/?state__exact=active")
    assert "bag-of-words" in listed
    number = f">{space.pk}</"  # as embed_spaces takes it
    assert number in listed
    assert number in shown
    assert admin_client.get("/admin/pgembed/space/add/").status_code == 403


def test_workers_are_shown_with_what_they_hold(admin_client: Client) -> None:
    worker = Worker.objects.create(
        host="host-1",
        pid=17,
        version="1",
        specs=["app.ArticleEmbedding"],
        paused={"default": "<i>down</i>"},
        aside={"app.NoteEmbedding": "<i>drift</i>"},
    )

    for page in (
        text(admin_client, "/admin/pgembed/worker/"),
        text(admin_client, f"/admin/pgembed/worker/{worker.pk}/change/"),
    ):
        assert "host-1:17" in page
        assert "app.ArticleEmbedding" in page
        assert "default&quot;: &quot;&lt;i&gt;down&lt;/i&gt;" in page
        assert "app.NoteEmbedding&quot;: &quot;&lt;i&gt;drift&lt;/i&gt;" in page
