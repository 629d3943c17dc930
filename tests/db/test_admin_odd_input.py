"""What nobody typed: each parameter of each admin page, with each odd value."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

import pytest
from django.contrib import admin
from django.contrib.admin import AdminSite
from django.db import transaction
from django.test import Client
from django.urls import path, reverse
from django.utils import timezone

from pgembed_django.admin import VectorsMixin
from pgembed_django.admin.actions import ACTIONS
from pgembed_django.admin.overview import VERBS
from pgembed_django.admin.tasks import VERBS as TASK_ACTIONS
from pgembed_django.models import Job
from pgembed_django.queue import jobs
from pgembed_django.testing import run_jobs
from tests.app.models import Article
from tests.db.conftest import claim

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


class ArticleAdmin(VectorsMixin, admin.ModelAdmin):
    search_fields = ("title",)


editors = AdminSite(name="editors")
editors.register(Article, ArticleAdmin)

urlpatterns = [path("admin/", admin.site.urls), path("editors/", editors.urls)]

KEY = "app.ArticleEmbedding"
PARAMETERS = (
    "status",
    "spec",
    "signature",
    "worker_id",
    "q",
    "p",
    "last_error__contains",
    "id__in",
)
NUL = ("%00", f"{KEY}%00 17")
ODD = (*NUL, "%ED%A0%80", "%D9%A1", "%C2%B2", "9" * 30, "9" * 5000, "-1", "x", "[]", "")
LISTS = {
    "/admin/pgembed/job/": PARAMETERS,
    "/admin/pgembed/task/": (*PARAMETERS, "tenant", "function"),
    "/admin/pgembed/taskrecord/": ("spec", "tenant", "function"),
    "/admin/pgembed/space/": ("state__exact", "q"),
    "/admin/pgembed/worker/": ("q",),
    "/editors/app/article/": ("vectors", "q"),
}
OWN = {
    "/admin/pgembed/": ("hours",),
    "/admin/pgembed/job/failures/": ("spec",),
    "/admin/pgembed/job/rows/": ("spec",),
    "/admin/pgembed/task/failures/": ("spec",),
    "/admin/pgembed/task/schedules/": ("spec",),
}
POSTED = ("after", "end")


def test_every_list_of_ours_is_crawled() -> None:
    registered = [model._meta for model in admin.site._registry]
    ours = [meta.model_name for meta in registered if meta.app_label == "pgembed"]

    assert {reverse(f"admin:pgembed_{name}_changelist") for name in ours} < set(LISTS)


def read() -> Iterator[str]:
    for where, names in (LISTS | OWN).items():
        for name in names:
            yield from (f"{where}?{name}={odd}" for odd in ODD)
    for where in LISTS:
        for odd in ODD:
            yield from (f"{where}{odd}/{page}/" for page in ("change", "history", "delete"))


def written() -> Iterator[tuple[str, dict[str, str]]]:
    for odd in map(unquote, ODD):
        for name in POSTED:
            yield f"/admin/pgembed/job/rows/?spec={KEY}", {name: odd}
            for action in ACTIONS:
                form = {"action": action, "_selected_action": "all", "select_across": "1"}
                yield "/admin/pgembed/job/", {**form, "end": "10", name: odd}
            for action in TASK_ACTIONS:
                form = {"action": action, "_selected_action": "all", "select_across": "1"}
                yield "/admin/pgembed/task/", {**form, "end": "10", name: odd}
        for verb in VERBS:
            for what in ("spec", "provider", odd):
                yield f"/admin/pgembed/job/operate/{verb}/", {"name": odd, "what": what}
                yield f"/admin/pgembed/task/operate/{verb}/", {"name": odd, "what": what}


@pytest.mark.slow
def test_no_parameter_breaks_a_page(admin_client: Client, make_article) -> None:
    make_article()
    [held] = claim()
    jobs.fail(held, "The server is down.", using="default")
    broken = []
    for method, url, data in [
        *(("get", url, None) for url in read()),
        *(("post", url, data) for url, data in written()),
    ]:
        try:
            with transaction.atomic():
                getattr(admin_client, method)(url, data)
        except Exception as error:  # noqa: BLE001
            broken.append(f"{method} {url[:80]} {str(data)[:80]} {type(error).__name__}")

    assert broken == []


@pytest.mark.parametrize("odd", NUL)
@pytest.mark.parametrize("where", ["job/?status=", "job/?signature=", "space/?state__exact="])
def test_a_list_that_is_filtered_by_a_nul_is_not_found(
    admin_client: Client, where: str, odd: str
) -> None:
    assert admin_client.get(f"/admin/pgembed/{where}{odd}").status_code == 404


@pytest.mark.parametrize("odd", ["9" * 30, "9" * 5000, "nobody"])
def test_what_is_no_worker_holds_nothing(admin_client: Client, make_article, odd: str) -> None:
    make_article()
    claim()
    everything = {"action": "release", "_selected_action": "all", "select_across": "1", "end": "9"}

    where = f"/admin/pgembed/job/?worker_id={odd}"
    listed = admin_client.get(where)
    admin_client.post(where, everything)

    assert listed.status_code == 302 or not listed.context["cl"].result_list
    assert Job.objects.get().status == "running"


# Typed by hand, or printed when another field was the key.
NO_KEYS = ("abc", "9" * 30, "", "1.5", "0e37b1a5-9d0f-4ee7-bb5f-1ad2cf7d5b5e")


@pytest.fixture
def of_no_row() -> list[Job]:
    failed = {"status": "failed", "last_error": "no", "finished_at": timezone.now()}
    return [Job.objects.create(spec=KEY, source_pk=no_key, **failed) for no_key in NO_KEYS]


def test_jobs_whose_key_is_none_are_shown(admin_client: Client, of_no_row: list[Job]) -> None:
    listed = admin_client.get("/admin/pgembed/job/?status=failed")
    assert listed.status_code == 200
    for job in of_no_row:
        page = admin_client.get(f"/admin/pgembed/job/{job.pk}/change/")
        assert page.status_code == 200


def test_jobs_whose_key_is_none_keep_no_other_from_being_embedded_anew(
    admin_client: Client, of_no_row: list[Job], make_article
) -> None:
    make_article()
    run_jobs()
    there = Job.objects.get(spec=KEY, status="succeeded")
    selected = [job.pk for job in (*of_no_row[:2], there, *of_no_row[2:])]

    page = admin_client.post(
        "/admin/pgembed/job/", {"action": "reembed", "_selected_action": selected}, follow=True
    )

    assert "1 queued to be embedded again, 5 left unchanged." in page.content.decode()
    assert Job.objects.filter(source_pk=there.source_pk, status="pending").exists()
