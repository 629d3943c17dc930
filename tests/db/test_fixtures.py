"""dumpdata, loaddata and serialized_rollback: what another database says is not true here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection

from pgembed_django.declaration import specs
from pgembed_django.models import Job, Space, Worker
from pgembed_django.spaces import reconcile
from tests.app.models import Article, ArticleEmbedding
from tests.conftest import embedded_text

pytestmark = pytest.mark.django_db(transaction=True)

KEY = "app.ArticleEmbedding"
OURS = ["app.article", "app.articleembedding", "pgembed"]


@pytest.fixture
def dumped(tmp_path: Path, make_article, run_jobs) -> Callable[..., Path]:
    """Dump apps of a database with one embedded row and one pending job, and empty it."""

    def dump() -> Path:
        make_article(title="bread", contents="and butter")
        run_jobs()
        make_article(title="zebra", contents="crossing")
        path = tmp_path / "dumped.json"
        call_command("dumpdata", *OURS, output=path)
        call_command("flush", interactive=False, inhibit_post_migrate=True)
        with connection.cursor() as cursor:
            cursor.execute("SELECT setval('pgembed_job_id_seq', 1, false)")
        return path

    return dump


def test_a_fixture_brings_no_vectors_of_another_database(dumped, make_article, run_jobs):
    path = dumped()
    make_article(title="here", contents="another row")
    run_jobs()
    [here] = Space.objects.filter(spec=KEY)
    Article.objects.all().delete()

    call_command("loaddata", path, verbosity=0)

    assert Article.objects.count() == 2
    assert not ArticleEmbedding.objects.exists()
    run_jobs()
    assert {one.space_id for one in ArticleEmbedding.objects.all()} == {here.pk}
    bread = Article.objects.get(title="bread")
    assert embedded_text(bread) == "bread\n\nand butter"


@pytest.mark.parametrize("order", [("app", "pgembed"), ("pgembed", "app")])
def test_a_fixture_of_everything_is_loaded_whatever_its_order(dumped, run_jobs, order):
    path = dumped()
    parts = [path.with_name(f"{label}.json") for label in order]
    for part, label in zip(parts, order, strict=True):
        objects = json.loads(path.read_text())
        of_app = [one for one in objects if one["model"].startswith(f"{label}.")]
        assert of_app
        part.write_text(json.dumps(of_app))

    for part in parts:
        call_command("loaddata", part, verbosity=0)

    assert Job.objects.filter(spec=KEY, status="pending").count() == 2
    assert not Space.objects.exists()
    assert not Worker.objects.exists()
    assert run_jobs() == 2


def test_a_serialized_rollback_brings_back_the_rows_and_not_the_jobs(make_article, run_jobs):
    make_article(title="bread", contents="and butter")
    contents = connection.creation.serialize_db_to_string()
    assert '"pgembed.job"' in contents
    call_command("flush", interactive=False, inhibit_post_migrate=True)

    connection.creation.deserialize_db_from_string(contents)

    assert run_jobs() == 1
    assert ArticleEmbedding.objects.count() == 1


def test_no_table_of_ours_is_loaded():
    ours = {spec.embedding_model for spec in specs.all()} | {
        *apps.get_app_config("pgembed").get_models()
    }
    for model in ours:
        assert model()._save_table(raw=True) is False


def begin_spaces_anew() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE pgembed_space RESTART IDENTITY")


def test_vectors_that_outlive_their_space_are_never_taken_for_another_models(
    make_article, run_jobs, settings
):
    begin_spaces_anew()
    make_article(title="bread", contents="and butter")
    run_jobs()
    [former] = ArticleEmbedding.objects.all()
    begin_spaces_anew()
    provider = settings.PGEMBED_PROVIDERS["default"]
    settings.PGEMBED_PROVIDERS = {"default": {**provider, "MODEL": "another"}}

    run_jobs()  # opens the spaces, in the order of the former ones
    reconcile.reconcile_once(specs.get(KEY), using="default")
    run_jobs()

    [space] = Space.objects.filter(spec=KEY)
    assert space.pk != former.space_id
    assert ArticleEmbedding.objects.filter(space=space).count() == 1


def test_no_two_databases_number_their_spaces_alike(dumped, run_jobs):
    path = dumped()
    call_command("loaddata", path, verbosity=0)  # which sets sequences back
    run_jobs()
    here = set(Space.objects.values_list("pk", flat=True))
    begin_spaces_anew()
    call_command("loaddata", path, verbosity=0)
    run_jobs()

    there = set(Space.objects.values_list("pk", flat=True))

    assert here
    assert there
    assert not here & there
