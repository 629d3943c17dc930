"""What a worker's models in process are at is told by the status, the command and the admin."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db.models.functions import Now
from django.test import Client

from pgembed_django import spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Worker as WorkerRow
from pgembed_django.ops import status
from pgembed_django.queue.liveness import WorkerRecord
from pgembed_django.queue.work import Work
from tests.app.models import Article
from tests.providers import abacus

pytestmark = [pytest.mark.usefixtures("without_dead_rows"), pytest.mark.django_db]

KEY = "app.ArticleEmbedding"


@pytest.fixture
def declare(settings: Any) -> Callable[..., None]:
    """Declare a provider whose model runs in process: see ``abacus``."""

    def declare(*args: Any, **options: Any) -> None:
        settings.PGEMBED_PROVIDERS = {"default": abacus(*args, **options)}

    declare()
    return declare


@pytest.fixture
def report(make_worker: Callable[..., Work]) -> Callable[[], WorkerRow]:
    """Let a worker embed all that waits, and report itself."""

    def report() -> WorkerRow:
        worker = make_worker()
        while worker.step():
            pass
        record = WorkerRecord([KEY], using="default")
        record.report([worker])
        record.row.refresh_from_db()
        return record.row

    return report


def told() -> list[status.ExecutorStatus]:
    workers = status.overview(using="default").workers
    return [one for worker in workers for one in worker.executors]


def page(viewer: Client) -> str:
    return viewer.get("/admin/pgembed/").content.decode()


def test_what_a_model_is_at_is_told(
    declare: Callable[..., None],
    make_article: Callable[..., Article],
    report: Callable[[], WorkerRow],
    viewer: Client,
) -> None:
    declare("OwnProcess", PROCESSES=2)
    for _ in range(6):
        make_article()
    row = report()

    [found] = told()
    assert (found.provider, found.kind) == ("default", "OwnProcess")
    assert (found.running, found.wanted, found.devices) == (1, 2, ["abacus"])
    assert (found.queued, found.start_seconds > 0) == (0, True)
    # Two texts are those that a space's model is recognized by, or that warm it up.
    assert 6 <= found.texts_per_second * 60 < 60
    rate = found.texts_per_second
    out = StringIO()
    call_command("embed_status", stdout=out)
    line = f"default  OwnProcess, 1 of 2 running on abacus: {rate:,.1f} texts a second, 0 queued"
    assert line in out.getvalue()
    out = StringIO()
    call_command("embed_status", "--json", stdout=out)
    [worker] = json.loads(out.getvalue())["workers"]
    assert worker["executors"][0]["wanted"] == 2
    section = page(viewer).partition("Models in process</h2>")[2].partition("</section>")[0]
    cells = ["default", str(row), "OwnProcess", "1 of 2", "abacus"]
    places = [section.index(f">{cell}</t") for cell in cells]
    assert places == sorted(places)


def test_a_server_has_no_executor(
    make_article: Callable[..., Article], report: Callable[[], WorkerRow], viewer: Client
) -> None:
    make_article()

    assert report().executors == []
    assert "Models in process" not in page(viewer)


def test_a_model_that_was_not_used_has_none(
    declare: Callable[..., None], report: Callable[[], WorkerRow]
) -> None:
    declare(options={"batch_size": 7})  # built anew: that of another test was used

    assert report().executors == []


def test_the_admin_leaves_out_those_of_dead_workers(
    declare: Callable[..., None],
    make_article: Callable[..., Article],
    report: Callable[[], WorkerRow],
    viewer: Client,
) -> None:
    make_article()
    report()
    assert "Models in process" in page(viewer)

    silent = Now() - timedelta(seconds=2 * status.SILENT_SECONDS)
    WorkerRow.objects.update(last_seen_at=silent)

    assert "Models in process" not in page(viewer)


@pytest.mark.parametrize(
    ("options", "number"),
    [({"beads": 11}, 2), ({"document_prefix": "passage: "}, 1)],
    ids=["another model", "another prefix"],
)
def test_two_spaces_of_one_provider_tell_of_as_many_executors_as_they_have(
    declare: Callable[..., None],
    make_article: Callable[..., Article],
    run_jobs: Callable[[], int],
    report: Callable[[], WorkerRow],
    options: dict[str, Any],
    number: int,
) -> None:
    make_article()
    run_jobs()
    declare(options=options)
    spec = specs.get(KEY)
    assert spec is not None
    spaces.ensure(spec, using="default")
    make_article()
    report()

    assert [one.provider for one in told()] == ["default"] * number


def test_a_process_with_other_settings_calls_the_provider_as_it_does_others(
    declare: Callable[..., None],
    make_article: Callable[..., Article],
    report: Callable[[], WorkerRow],
    settings: Any,
) -> None:
    make_article()
    report()
    declared = settings.PGEMBED_PROVIDERS["default"]
    settings.PGEMBED_PROVIDERS = {"default": {**declared, "MODEL": "newer"}}

    [found] = told()

    assert found.provider == "default (abacus)"


def test_what_another_version_tells_besides_is_left_out(
    declare: Callable[..., None],
    make_article: Callable[..., Article],
    report: Callable[[], WorkerRow],
) -> None:
    make_article()
    row = report()
    [told_so] = row.executors
    row.executors = [{**told_so, "watts": 700}]
    row.save()

    [found] = told()

    assert found.kind == "InProcess"


def test_devices_of_one_name_are_shown_together() -> None:
    devices = ["H200", "H200", "A10"]

    shown = status.ExecutorStatus(provider="default", kind="Ray", devices=devices).runs_on

    assert shown == "2 x H200, A10"
