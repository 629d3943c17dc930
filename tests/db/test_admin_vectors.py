"""The mixin for the users' own admin: the state of a row's vectors, Retry, a filter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib import admin
from django.contrib.admin import AdminSite
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import path, reverse

from pgembed_django.admin import VectorsMixin, actions, mixin
from pgembed_django.declaration import specs
from pgembed_django.models import Job
from pgembed_django.queue import jobs
from tests.app.models import Article, ArticleEmbedding, Note, Page, Product
from tests.conftest import embedded_text
from tests.db.conftest import claim

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


class RowAdmin(VectorsMixin, admin.ModelAdmin):
    pass


class OwnFieldsAdmin(VectorsMixin, admin.ModelAdmin):
    fields = ("slug", "body")
    actions = ("shout",)

    class Media:
        css = {"all": ["own.css"]}

    @admin.action
    def shout(self, request, queryset):
        pass


class OwnRowsAdmin(RowAdmin):
    def has_view_permission(self, request, obj=None):
        return obj is None or obj.author == request.user.get_username()


editors = AdminSite(name="editors")
editors.register([Article, Note, Product], RowAdmin)
editors.register(Page, OwnFieldsAdmin)
authors = AdminSite(name="authors")
authors.register(Article, OwnRowsAdmin)

urlpatterns = [
    path("admin/", admin.site.urls),
    path("editors/", editors.urls),
    path("authors/", authors.urls),
]
LIST = "/editors/app/article/"


@pytest.fixture
def editor() -> Client:
    """May edit rows and retry their units, and nothing else."""
    user = User.objects.create_user("editor", is_staff=True)
    for label in ("change_article", "view_page", "retry_job"):
        user.user_permissions.add(Permission.objects.get(codename=label))
    client = Client()
    client.force_login(user)
    return client


def fail(article: Article, error: str = "<b>too bad</b>") -> Job:
    [held] = [held for held in claim() if held.source_pk == str(article.pk)]
    assert jobs.fail(held, error, using="default") == "failed"
    return Job.objects.get(pk=held.id)


def states(client: Client, query: str = "") -> dict[str, str]:
    found = client.get(f"{LIST}?{query}").context["cl"].result_list
    return {row.title: row.pgembed_state for row in found}


def text(client: Client, where: str) -> str:
    response = client.get(where)
    assert response.status_code == 200
    return response.content.decode()


def test_an_admin_without_actions_gets_none(rf: RequestFactory, admin_user: User) -> None:
    class Bare(RowAdmin):
        actions = None

    request = rf.get("/")
    request.user = admin_user

    assert Bare(Article, editors).get_actions(request) == {}


@pytest.mark.parametrize(
    ("model", "styles"),
    [(Article, ["pgembed/admin.css"]), (Page, ["pgembed/admin.css", "own.css"])],
)
def test_errors_are_styled_as_on_our_own_pages_beside_an_admins_own_styles(model, styles) -> None:
    shown = str(editors.get_model_admin(model).media)

    assert [style for style in styles if style in shown] == styles


def test_a_row_that_is_being_added_has_no_state(admin_client: Client) -> None:
    assert Note().pk is not None
    assert 'class="readonly">-' in text(admin_client, "/editors/app/note/add/")


def test_a_row_that_another_page_brings_has_no_state(
    make_article: Callable[..., Article], run_jobs: Callable[[], int]
) -> None:
    article = make_article(title="as it was")
    run_jobs()

    # As the page of a former version does: it is not in the list's queryset.
    assert RowAdmin(Article, editors).vectors(article) == "-"


def test_a_rows_page_tells_of_passages_that_were_cut(
    admin_client: Client, make_article: Callable[..., Article], run_jobs: Callable[[], int]
) -> None:
    fits, cut = make_article(title="fits"), make_article(title="does not")
    run_jobs()
    ArticleEmbedding.objects.filter(source=cut).update(was_cut=True)

    assert "1 passage did not fit the model as a whole." in text(
        admin_client, f"{LIST}{cut.pk}/change/"
    )
    assert "did not fit" not in text(admin_client, f"{LIST}{fits.pk}/change/")


def test_the_list_shows_and_filters_the_state_of_each_row(
    admin_client: Client, make_article: Callable[..., Article], run_jobs: Callable[[], int]
) -> None:
    make_article(title="fresh")
    make_article(title="empty", contents="")
    aside = make_article(title="before it was changed")
    run_jobs()
    Article.objects.filter(pk=aside.pk).update(title="dismissed")
    jobs.dismiss([fail(aside).pk], using="default")
    fail(make_article(title="failed"))
    make_article(title="draft", published_time=None)
    make_article(title="missing")
    Job.objects.filter(status="pending").delete()
    make_article(title="pending")

    expected = {
        "fresh": "fresh",
        "empty": "fresh",
        "failed": "failed",
        "dismissed": "dismissed",
        "draft": "outside",
        "missing": "missing",
        "pending": "pending",
    }
    assert states(admin_client) == expected
    for state in mixin.STATES:
        shown = {title for title, of in expected.items() if of == state}
        assert states(admin_client, f"vectors={state}").keys() == shown
    assert states(admin_client, "vectors=nonsense") == expected


def test_a_list_takes_no_query_for_each_row(
    admin_client: Client, make_article: Callable[..., Article]
) -> None:
    for _ in range(20):
        make_article()

    with CaptureQueriesContext(connection) as queries:
        text(admin_client, LIST)

    assert len(queries) <= 6


def test_a_model_that_is_decorated_twice_shows_its_worst_state(
    admin_client: Client, run_jobs: Callable[[], int]
) -> None:
    Product.objects.create(title="lamp")
    run_jobs()
    Product.objects.update(title="lamp, new")
    for held in claim():
        if held.spec == specs.of(Product)[0].key:
            jobs.fail(held, "too bad", using="default")

    shown = text(admin_client, "/editors/app/product/")

    assert 'class="field-vectors">failed<' in shown


def test_a_row_outside_of_one_of_two_conditions_lacks_nothing(
    admin_client: Client, run_jobs: Callable[..., int]
) -> None:
    Product.objects.create(title="lamp", in_stock=False)
    run_jobs()

    page = admin_client.get("/editors/app/product/").content.decode()

    assert 'class="field-vectors">fresh<' in page


def test_a_rows_page_shows_the_error_and_retries(
    editor: Client, make_article: Callable[..., Article], run_jobs: Callable[[], int]
) -> None:
    article = make_article(title="old")
    job = fail(article)
    where = f"{LIST}{article.pk}/change/"
    assert "&lt;b&gt;too bad&lt;/b&gt;" in text(editor, where)
    button = reverse("editors:app_article_pgembed_retry", args=[article.pk])
    assert f'formaction="{button}"' in text(editor, where)

    # The form is sent along, and not saved.
    response = editor.post(button, {"title": "edited"})

    assert (response.status_code, response["Location"]) == (302, where)
    assert str(list(get_messages(response.wsgi_request))[-1]) == "1 job retried."
    assert LogEntry.objects.get().object_id == str(job.pk)
    run_jobs()
    assert "old" in (embedded_text(article) or "")
    assert 'class="readonly">fresh<' in text(editor, where)


def test_the_page_of_a_dismissed_row_says_why_and_retries(
    editor: Client, make_article: Callable[..., Article]
) -> None:
    article = make_article()
    jobs.dismiss([fail(article).pk], using="default")
    button = reverse("editors:app_article_pgembed_retry", args=[article.pk])
    shown = text(editor, f"{LIST}{article.pk}/change/")
    assert "&lt;b&gt;too bad&lt;/b&gt;" in shown
    assert f'formaction="{button}"' in shown

    response = editor.post(button)

    assert str(list(get_messages(response.wsgi_request))[-1]) == "1 job retried."
    assert 'class="readonly">pending ' in text(editor, f"{LIST}{article.pk}/change/")


def test_the_button_needs_the_permission_to_retry_and_to_see_the_row(
    editor: Client, make_article: Callable[..., Article]
) -> None:
    article = make_article()
    fail(article)
    button = reverse("editors:app_article_pgembed_retry", args=[article.pk])
    assert editor.get(button).status_code == 405
    assert editor.post(reverse("editors:app_article_pgembed_retry", args=[0])).status_code == 404
    User.objects.get().user_permissions.remove(Permission.objects.get(codename="retry_job"))

    assert editor.post(button).status_code == 403
    assert button not in text(editor, f"{LIST}{article.pk}/change/")
    assert "pgembed_retry" not in text(editor, LIST)


def test_a_row_whose_page_is_refused_is_not_retried(
    editor: Client, make_article: Callable[..., Article]
) -> None:
    for author, status in (("editor", 302), ("another", 403)):
        article = make_article(author=author)
        fail(article)
        button = reverse("authors:app_article_pgembed_retry", args=[article.pk])

        assert editor.post(button).status_code == status


def test_selected_rows_are_retried_for_two_seconds_at_a_time(
    editor: Client, make_article: Callable[..., Article], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = [make_article(), make_article()]
    for held in claim():
        jobs.fail(held, "too bad", using="default")
    other = make_article()
    Job.objects.filter(status="pending").delete()
    pks = [row.pk for row in (*failed, other)]
    selected = {"action": "pgembed_retry", "_selected_action": pks}

    def act() -> str:
        response = editor.post(LIST, selected)
        return str(list(get_messages(response.wsgi_request))[-1])

    monkeypatch.setattr(actions, "MAX_SECONDS", 0)
    assert act() == "1 job retried, 1 not checked yet."
    assert act() == "1 job retried."


def test_a_key_with_strange_signs_and_a_new_row_have_their_pages(admin_client: Client) -> None:
    page = Page.objects.create(slug="a/b_c?d#e", body="text")
    quoted = admin.utils.quote(page.pk)

    assert 'class="readonly">pending ' in text(admin_client, f"/editors/app/page/{quoted}/change/")
    button = reverse("editors:app_page_pgembed_retry", args=[quoted])
    assert 'value="shout"' in text(admin_client, "/editors/app/page/")
    response = admin_client.post(button)
    assert response["Location"] == f"/editors/app/page/{quoted}/change/"
    assert admin_client.get("/editors/app/page/add/").status_code == 200
