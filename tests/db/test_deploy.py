"""What the files in docs/deploy ask the database for."""

from __future__ import annotations

import re

import pytest
from django.db import connection

from pgembed_django.models import Job, Task
from tests.app import tasks
from tests.unit.test_deploy import DEPLOY, manifest

pytestmark = pytest.mark.django_db


def asked(name: str = "worker") -> str:
    [trigger] = manifest("ScaledObject", name)["spec"]["triggers"]
    return trigger["metadata"]["query"]


def test_keda_counts_the_jobs_that_are_ready(make_article):
    make_article()
    make_article()
    make_article()
    last = Job.objects.latest("pk")
    Job.objects.filter(pk=last.pk).update(run_at="2999-01-01T00:00Z")

    with connection.cursor() as cursor:
        cursor.execute(asked())
        assert cursor.fetchall() == [(2,)]


def test_keda_reads_an_index_however_many_jobs_there_are():
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgembed_job (spec, source_pk, status, finished_at)"
            " SELECT 'app.ArticleEmbedding', n::text, 'succeeded', now()"
            " FROM generate_series(1, 20000) AS n"
        )
        cursor.execute("ANALYZE pgembed_job")
        cursor.execute("EXPLAIN " + asked())
        plan = "\n".join(row[0] for row in cursor.fetchall())

    assert "Seq Scan on pgembed_job" not in plan


def test_keda_counts_the_tasks_of_a_queue_that_are_due_or_run():
    for _ in range(3):
        tasks.add.using(queue_name="llm").enqueue(1, 2)
    tasks.add.enqueue(1, 2)
    later, running, _ = Task.objects.filter(queue="llm").order_by("pk")
    Task.objects.filter(pk=later.pk).update(run_at="2999-01-01T00:00Z")
    Task.objects.filter(pk=running.pk).update(
        status="running", worker_id=1, lease_expires_at="2999-01-01T00:00Z"
    )

    with connection.cursor() as cursor:
        cursor.execute(asked("worker-llm"))
        assert cursor.fetchall() == [(2,)]


def test_keda_reads_an_index_however_many_tasks_there_are():
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgembed_task (spec, source_pk, kind, arguments, status, finished_at)"
            " SELECT 'llm', n::text, 'a.b', '{}', 'succeeded', now()"
            " FROM generate_series(1, 20000) AS n"
        )
        cursor.execute("ANALYZE pgembed_task")
        cursor.execute("EXPLAIN " + asked("worker-llm"))
        plan = "\n".join(row[0] for row in cursor.fetchall())

    assert "Seq Scan on pgembed_task" not in plan


def test_the_page_on_size_sets_what_a_table_has():
    page = (DEPLOY.parent / "how-to/size-it.md").read_text()
    [statement] = re.findall(r"```sql\n(ALTER TABLE blog_articleembedding .+?)```", page, re.DOTALL)

    with connection.cursor() as cursor:
        cursor.execute(statement.replace("blog_articleembedding", "app_articleembedding"))
        cursor.execute(
            "SELECT reloptions FROM pg_class WHERE oid = 'app_articleembedding'::regclass"
        )
        [[options]] = cursor.fetchall()

    assert "autovacuum_vacuum_scale_factor=0.02" in options
