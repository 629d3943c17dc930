"""A database that is not in UTF-8: errors say what they like, and end the job all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections

from pgembed_django import conf
from pgembed_django.checks import check_databases
from pgembed_django.declaration import specs
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.models import Attempt, Job, Space, Worker
from pgembed_django.queue import jobs
from pgembed_django.queue.liveness import WorkerRecord
from pgembed_django.queue.work import Work
from pgembed_django.retrieval import statistics, targets
from tests.app.models import Article
from tests.conftest import testing_url

pytestmark = pytest.mark.django_db(transaction=True)

SPEC = "shop.ItemEmbedding"


@pytest.fixture(params=["LATIN1", "WIN1252", "SQL_ASCII"])
def encoded(request: pytest.FixtureRequest, settings) -> Iterator[str]:
    """An alias of a database with our tables in another encoding."""
    name = f"{connection.settings_dict['NAME']}_encoded"
    with psycopg.connect(testing_url(), autocommit=True) as admin:
        admin.execute(
            f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING '{request.param}' LOCALE 'C'"
        )
        connections["encoded"] = connection.copy("encoded")
        connections["encoded"].settings_dict["NAME"] = name
        try:
            call_command("migrate", "pgembed", database="encoded", verbosity=0, skip_checks=True)
            yield "encoded"
        finally:
            connections["encoded"].close()
            del connections["encoded"]
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def claimed(using: str) -> jobs.Claim:
    [held] = jobs.claim([SPEC], limit=1, lease=jobs.Lease(1, 60), using=using)
    return held


def test_an_error_that_it_cannot_hold_is_told_as_far_as_it_can(encoded):
    job = Job.objects.using(encoded).create(spec=SPEC, source_pk="1")
    error = 'ValueError: "日本" is no café …'

    retried = jobs.retry(claimed(encoded), error, max_attempts=2, delay_seconds=0, using=encoded)
    failed = jobs.retry(claimed(encoded), error, max_attempts=2, delay_seconds=0, using=encoded)

    assert (retried, failed) == ("requeued", "failed")
    job.refresh_from_db()
    assert "is no café" in job.last_error
    assert job.signature.startswith("ValueError:")
    assert Attempt.objects.using(encoded).count() == 2


def test_a_worker_tells_as_much_of_why_a_spec_is_set_aside(encoded):
    pipeline = Work(
        EmbeddingHandler({}, using=encoded),
        using=encoded,
        worker_id=1,
        settings=conf.current(),
        inline=True,
    )
    pipeline.handler.units.quarantined[specs.get("app.ArticleEmbedding")] = "日本 is no café"
    presence = WorkerRecord([], using=encoded)

    presence.report([pipeline])

    [told] = Worker.objects.using(encoded).values_list("aside", flat=True)
    assert "is no caf" in told["app.ArticleEmbedding"]


class Describing(EmbeddingHandler):
    """Its model runs on a device with a long name."""

    def executors(self, *, for_people: bool = False) -> Sequence[Mapping[str, Any]]:
        return [{"provider": "default", "running": 1, "devices": ["Beschleuniger® 日本"]}]


def test_a_worker_tells_as_much_of_what_its_models_run_on(encoded):
    work = Work(
        Describing({}, using=encoded),
        using=encoded,
        worker_id=1,
        settings=conf.current(),
        inline=True,
    )

    WorkerRecord([], using=encoded).report([work])

    [[told]] = Worker.objects.using(encoded).values_list("executors", flat=True)
    assert told["running"] == 1
    assert told["devices"][0].startswith("Beschleuniger")


def test_a_check_tells_the_encoding(encoded):
    [message] = [one for one in check_databases(databases=[encoded]) if one.id == "pgembed.W009"]

    assert "'encoded' is encoded in " in message.msg


def test_words_that_it_cannot_hold_are_not_searched_for(encoded):
    target = targets.of(Article.objects.using(encoded), name=None)
    Space.objects.using(encoded).create(spec=target.spec.key, state="active", dimensions=64)
    with connections[encoded].cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE {target.table} (id bigint, source_id bigint, space_id bigint, "
            "position int, start_offset int, end_offset int, passage text, fulltext tsvector)"
        )

    found = statistics.survey(target, "temples of 京都 or kyoto")

    assert found is not None
    assert {"kyoto", "templ"} <= found.words.times.keys()
