"""A spec is gone: what is left of it can be seen, and deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError
from django.db import connection
from django.utils import timezone

from pgembed_django import spaces
from pgembed_django.declaration import specs
from pgembed_django.models import (
    Attempt,
    Job,
    Pause,
    ReplicationSlot,
    Ripple,
    Rollup,
    ScanCursor,
    Space,
    StagedVector,
    Worker,
)
from pgembed_django.queue import jobs, rollups
from tests.app.models import Article, ArticleEmbedding
from tests.db.test_operator_commands import exit_status, run
from tests.db.test_status import make_failures

pytestmark = pytest.mark.django_db

KEY = "app.ArticleEmbedding"
GONE = "app.GoneEmbedding"
HELD = (Job, Attempt, Ripple, Space, StagedVector, ScanCursor, Rollup)


@pytest.fixture
def gone(make_article: Callable[..., Article], run_jobs: Callable[[], int]) -> str:
    """A spec that had something of everything, when it was declared."""
    make_article()
    run_jobs()
    make_failures(3, error="timed out", spec=GONE)
    Job.objects.create(spec=GONE, source_pk="pending")
    Attempt.objects.create(
        spec=GONE,
        source_pk="1",
        outcome="failed",
        started_at=timezone.now(),
        worker="a",
        error="no",
    )
    space = Space.objects.create(
        spec=GONE, fingerprint="x", provider="default", backend="b", model="m", dimensions=2
    )
    StagedVector.objects.create(
        spec=GONE, source_pk="1", space=space, chunk_digest=b"x", embedding=[1, 2]
    )
    ScanCursor.objects.create(spec=GONE, scan="missing")
    Ripple.objects.create(spec=GONE, path="author__pk", key="1")
    tally = rollups.Tally()
    tally.completed(GONE, waited=0.5)
    tally.completed(KEY, waited=0.5)
    tally.flush(using="default")
    jobs.pause("spec", GONE, by="me", using="default")
    jobs.pause("spec", KEY, by="me", using="default")
    spaces.ensure(specs.get(KEY), using="default")
    return GONE


def rows_of(key: str) -> dict[str, int]:
    found = {model.__name__: model.objects.filter(spec=key).count() for model in HELD}
    return found | {"Pause": Pause.objects.filter(name=key).count()}


def test_it_tells_what_is_left_and_deletes_nothing_by_itself(gone: str) -> None:
    before = rows_of(gone)
    assert all(before.values())

    told = run("embed_forget")

    assert f"{gone}\n  4 jobs, 1 attempts, 1 ripples, 1 spaces, 1 staged vectors, 1 scans" in told
    assert "Nothing was deleted. Pass --yes to delete it." in told
    assert KEY not in told
    assert rows_of(gone) == before


def test_told_so_it_deletes_all_of_that_and_nothing_else(gone: str) -> None:
    others = rows_of(KEY)

    assert "deleted: 4 jobs" in run("embed_forget", "--yes")

    assert not any(rows_of(gone).values())
    assert rows_of(KEY) == others
    assert ArticleEmbedding.objects.count() == 1
    assert "No data is left" in run("embed_forget", "--yes")


def test_no_table_of_ours_is_left_out(gone: str) -> None:
    """Whatever names a spec goes with it. A worker's row goes by itself, a slot's with the slot."""
    fields = {"spec": HELD, "name": (Pause, ReplicationSlot), "specs": (Worker, ReplicationSlot)}

    for model in apps.get_app_config("pgembed").get_models():
        names = {field.name for field in model._meta.fields} & set(fields)
        assert all(model in fields[name] for name in names), model


def test_a_declared_spec_is_not_forgotten(gone: str) -> None:
    assert exit_status("embed_forget", "--specs", KEY, "--yes") == 2
    assert exit_status("embed_forget", "--specs", "app.Nothing", "--yes") == 2


def test_nor_one_that_a_live_worker_knows(gone: str) -> None:
    Worker.objects.create(host="here", pid=7, version="1", specs=[gone])

    with pytest.raises(CommandError, match=r"the worker here:7 works on it\. Restart it"):
        run("embed_forget", "--yes")

    assert Job.objects.filter(spec=gone).count() == 4
    Worker.objects.update(last_seen_at="2020-01-01T00:00:00Z")
    assert "deleted" in run("embed_forget", "--yes")


def test_nor_one_whose_triggers_are_there_yet(gone: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            CREATE FUNCTION pgtrigger_pgembed_gone() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM pgembed_enqueue_v1('app.GoneEmbedding', NEW.id::text, 0);
                RETURN NULL;
            END
            $$;
            CREATE TRIGGER pgtrigger_pgembed_gone AFTER INSERT ON app_category
            FOR EACH ROW EXECUTE FUNCTION pgtrigger_pgembed_gone();
            """
        )

    with pytest.raises(CommandError, match=r"its triggers are on app_category\. Run make"):
        run("embed_forget", "--yes")

    assert Job.objects.filter(spec=gone).exists()


@pytest.mark.django_db(transaction=True)
def test_what_a_renamed_model_is_about_to_be_given_is_not_forgotten(
    make_article, run_jobs, connect
) -> None:
    """``migrate`` has put it off: a job was locked."""
    make_article()
    run_jobs()
    make_article()
    for model in (Space, Job):
        model.objects.filter(spec=KEY).update(spec=GONE)
    other = connect()
    other.execute("SELECT FROM pgembed_job WHERE spec = %s FOR UPDATE", [GONE])

    with pytest.raises(CommandError, match="Run it again"):
        run("embed_forget", "--yes")

    assert Space.objects.filter(spec=GONE).exists()
    other.rollback()
    run("embed_forget", "--yes")
    assert Space.objects.filter(spec=KEY).exists()
    assert Job.objects.filter(spec=KEY, status="pending").count() == 1


@pytest.mark.django_db(transaction=True)
def test_it_waits_for_no_open_transaction(connect: Callable[..., Any]) -> None:
    Job.objects.create(spec=GONE, source_pk="1")
    other = connect()
    other.execute("SELECT FROM pgembed_job FOR UPDATE")

    with pytest.raises(CommandError, match="an open transaction has some of its jobs"):
        run("embed_forget", "--yes")

    other.rollback()
    run("embed_forget", "--yes")
    assert not Job.objects.filter(spec=GONE).exists()
