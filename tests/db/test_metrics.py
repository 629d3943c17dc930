"""Metrics are an interface: their names, types and labels are those of the docs."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import psycopg
import pytest
from django.db import connection, connections, transaction
from django.test import Client
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pgembed_django import events
from pgembed_django.contrib import metrics
from pgembed_django.contrib.metrics import collectors
from pgembed_django.contrib.metrics.collectors import QueueCollector, WorkerCollector
from pgembed_django.declaration import specs
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.models import Job
from pgembed_django.models import Worker as WorkerRow
from pgembed_django.ops import status
from pgembed_django.queue import rollups
from pgembed_django.queue.worker import Worker
from tests.app.models import Article, Note
from tests.db.test_status import make_failures
from tests.docs_tables import documented_metrics
from tests.providers import abacus

pytestmark = [pytest.mark.usefixtures("without_dead_rows"), pytest.mark.django_db]

KEY = "app.ArticleEmbedding"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """The collector remembers for seconds, which is longer than a test."""
    collectors._queue_collector.cache_clear()
    yield
    collectors._queue_collector.cache_clear()


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker that is not started. The jobs are run by the test, in this process."""
    worker = Worker(
        [EmbeddingHandler({spec.key: spec for spec in specs.all()}, using="default")],
        using="default",
    )
    yield worker
    worker._idle.close()


@pytest.fixture
def shown(worker: Worker) -> metrics.Render:
    """What that worker shows."""
    return metrics.of_worker(worker)


def samples(shown: metrics.Render) -> Iterator[Sample]:
    for family in text_string_to_metric_families(shown("")[0].decode()):
        yield from family.samples


def scrape(shown: metrics.Render) -> Callable[..., float | None]:
    """Return what looks a sample up by its name and labels."""
    found = {(one.name, frozenset(one.labels.items())): one.value for one in samples(shown)}

    def value(name: str, **labels: str) -> float | None:
        return found.get((f"pgembed_{name}", frozenset(labels.items())))

    return value


def scrape_queue() -> Callable[..., float | None]:
    return scrape(collectors.render_of(metrics.queue_collector()))


def test_every_metric_is_in_the_docs_with_its_type_and_labels_and_no_other(
    shown, worker, make_worker, make_article, run_jobs, capture, settings
):
    capture(Note, "wal")
    settings.PGEMBED_PROVIDERS = {"default": abacus()}
    make_article()
    worker.works.append(make_worker())
    while worker.works[0].step():
        pass
    WorkerRow.objects.create(host="here", pid=7, version="1", specs=[KEY])
    tally = rollups.Tally()
    tally.completed(KEY, waited=1.0)
    tally.completed("default", waited=1.0)
    tally.flush(using="default")

    exported: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(shown("")[0].decode()):
        if not family.name.startswith("process_") and not family.name.endswith("_created"):
            labels = {label for sample in family.samples for label in sample.labels}
            name = family.name + "_total" * (family.type == "counter")
            exported[name] = family.type, labels - {"le"}
    assert exported == documented_metrics()


def test_a_workers_counters_tell_what_it_did(shown, provider, make_article, run_jobs):
    make_article()
    make_article(title="poison")
    make_article(title="trouble")
    before = scrape(shown)
    run_jobs()
    found = scrape(shown)

    assert before("claimed_total", spec=KEY) == 0
    assert found("claimed_total", spec=KEY) == 3
    assert found("completed_total", spec=KEY) == 1
    assert found("chunks_embedded_total", spec=KEY) == 1
    assert found("failed_total", spec=KEY) == 1
    assert found("retried_total", spec=KEY) == 1
    assert found("wait_seconds_count", spec=KEY) == 1
    assert found("provider_requests_total", provider="default", outcome="embedded") == 1
    assert found("provider_tokens_total", provider="default") > 0
    assert found("batch_fill_ratio_sum", provider="default") == 3 / 32
    assert found("claimed_total", spec="app.NoteEmbedding") == 0


@pytest.mark.django_db(transaction=True)
def test_a_worker_tells_what_its_models_in_process_are_at(make_article, settings):
    settings.PGEMBED_PROVIDERS = {"default": abacus("OwnProcess", PROCESSES=2)}
    for _ in range(3):
        make_article()
    known = {spec.key: spec for spec in specs.all()}
    worker = Worker([EmbeddingHandler(known, using="default")], using="default", drain=True)
    shown = metrics.of_worker(worker)
    during = []

    def look(**_: object) -> None:
        during.append(scrape(shown))

    events.happened.connect(look, sender=events.BATCH_EMBEDDED)
    before = scrape(shown)
    worker.run()

    assert before("executor_processes", provider="default") is None
    assert during[0]("executor_processes", provider="default") == 1
    assert during[0]("executor_processes_wanted", provider="default") == 2
    assert during[0]("executor_queued", provider="default") is not None
    assert during[0]("executor_texts_per_second", provider="default") > 0


def test_an_unchanged_text_is_counted_as_reused(shown, make_article, run_jobs):
    article = make_article()
    run_jobs()
    before = scrape(shown)
    Article.objects.filter(pk=article.pk).update(title="other")
    Article.objects.filter(pk=article.pk).update(title=article.title)
    run_jobs()

    found = scrape(shown)
    assert found("chunks_reused_total", spec=KEY) == before("chunks_reused_total", spec=KEY) + 1
    assert found("chunks_embedded_total", spec=KEY) == before("chunks_embedded_total", spec=KEY)


def test_an_outage_is_counted_by_provider(shown, provider, make_article, run_jobs):
    provider.is_down = True
    make_article()
    run_jobs()

    found = scrape(shown)
    assert found("provider_requests_total", provider="default", outcome="unavailable") == 1
    assert found("released_total", spec=KEY) == 1
    assert found("failed_total", spec=KEY) == 0


def test_a_lost_lease_is_counted(shown, make_worker, make_article):
    worker = make_worker()
    make_article()
    worker.step()
    Job.objects.update(claims=9)
    worker.step()

    assert scrape(shown)("leases_lost_total", spec=KEY) == 1


def test_counters_end_with_the_last_reference_to_them(worker):
    counters = WorkerCollector(worker, CollectorRegistry())
    reference = weakref.ref(counters)

    del counters
    gc.collect()

    assert reference() is None
    assert not events.happened.has_listeners(events.JOBS_CLAIMED)


def test_the_queues_gauges_are_what_the_status_tells(make_article, run_jobs):
    make_article()
    run_jobs()
    make_article()
    make_failures(3)
    Job.objects.create(
        spec=KEY, source_pk="later", kind="reconciler", run_at="2100-01-01T00:00:00Z"
    )

    found = scrape_queue()

    assert found("queue_up") == 1
    assert found("jobs_ready", spec=KEY, kind="write") == 1
    assert found("jobs_ready", spec=KEY, kind="reconciler") == 0
    assert found("jobs_delayed", spec=KEY, kind="reconciler") == 1
    assert found("open_failures", spec=KEY) == 3
    assert found("rows", spec=KEY) == 2
    assert found("coverage_ratio", spec=KEY, space="active") == 0.5
    assert found("oldest_change_seconds", spec=KEY) >= 0
    assert found("workers", spec=KEY) == 0
    [spec] = [one for one in status.overview(using="default").specs if one.key == KEY]
    states = {state: found("spec_state", spec=KEY, state=state) for state in status.STATES}
    assert states.pop(spec.verdict.state) == 1
    assert set(states.values()) == {0}


def test_failures_of_a_spec_that_is_gone_are_shown_too():
    make_failures(2, spec="blog.Gone")

    assert scrape_queue()("open_failures", spec="blog.Gone") == 2


def test_a_spec_without_a_space_has_no_coverage_and_its_jobs_wait():
    Note.objects.create(body="waits")
    found = scrape_queue()

    assert found("coverage_ratio", spec="app.NoteEmbedding", space="active") is None
    assert found("jobs_ready", spec="app.NoteEmbedding", kind="write") == 1


def test_scrapes_that_come_together_share_one_look(django_assert_num_queries, make_article):
    now = [0.0]
    collector = QueueCollector(using="default", clock=lambda: now[0])
    first = collector.collect()
    make_article()
    with django_assert_num_queries(0):
        assert collector.collect() is first

    now[0] += 6
    assert collector.collect() is not first


@pytest.mark.django_db(transaction=True)
def test_a_database_that_does_not_answer_in_time_is_told_and_no_error(
    second_connection: psycopg.Connection, monkeypatch
):
    monkeypatch.setattr(collectors, "STATEMENT_SECONDS", 0.1)
    second_connection.execute("LOCK TABLE pgembed_job IN ACCESS EXCLUSIVE MODE")
    shown = collectors.render_of(metrics.queue_collector())

    assert [(one.name, one.value) for one in samples(shown)] == [("pgembed_queue_up", 0)]

    second_connection.rollback()
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("0",)


def test_a_transaction_around_a_look_keeps_its_time_out():
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute("SET LOCAL statement_timeout = '7s'")
        QueueCollector(using="default").collect()
        cursor.execute("SHOW statement_timeout")

        assert cursor.fetchone() == ("7s",)


def test_a_look_under_way_holds_no_other_scrape_up(monkeypatch):
    monkeypatch.setattr(collectors, "STATEMENT_SECONDS", 0.05)
    collector = QueueCollector(using="default")
    collector.collect()
    collector._lock.acquire()
    seen = []
    other = threading.Thread(target=lambda: seen.append(collector.collect()))

    other.start()
    other.join(timeout=10)

    assert seen == [collector._families]


def test_a_look_that_gets_no_answer_is_told_to_the_scrapes_after_it(monkeypatch, make_article):
    monkeypatch.setattr(collectors, "STATEMENT_SECONDS", 0.05)
    now = [0.0]
    collector = QueueCollector(using="default", clock=lambda: now[0])
    collector.collect()
    asked, answered = threading.Event(), threading.Event()

    def frozen(execute: Callable[..., object], *args: object) -> object:
        asked.set()
        answered.wait(timeout=10)
        return execute(*args)

    def look() -> None:
        with connection.execute_wrapper(frozen):
            collector.collect()
        connection.close()

    now[0] += 60
    first = threading.Thread(target=look)
    first.start()
    assert asked.wait(timeout=10)
    while_it_may_answer = collector.collect()
    now[0] += 11
    too_late = collector.collect()
    answered.set()
    first.join(timeout=10)

    assert len(while_it_may_answer) > 1
    [up] = too_late
    assert [(one.name, one.value) for one in up.samples] == [("pgembed_queue_up", 0)]


def test_the_view_answers_prometheus(client: Client, make_article):
    make_article()

    answer = client.get("/metrics")

    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=")
    assert f'pgembed_jobs_ready{{kind="write",spec="{KEY}"}} 1.0' in answer.content.decode()
    assert "pgembed_claimed" not in answer.content.decode()
    assert client.post("/metrics").status_code == 405


def test_registering_the_collector_asks_nothing_of_the_database(django_assert_num_queries):
    with django_assert_num_queries(0):
        CollectorRegistry(auto_describe=True).register(metrics.queue_collector())


def test_the_queues_of_two_tenants_are_not_mixed_up(monkeypatch, make_article):
    wrapper = connections["default"]
    monkeypatch.setattr(wrapper, "schema_name", "one", raising=False)
    assert scrape_queue()("jobs_ready", spec=KEY, kind="write") == 0
    make_article()
    assert scrape_queue()("jobs_ready", spec=KEY, kind="write") == 0

    monkeypatch.setattr(wrapper, "schema_name", "two")
    assert scrape_queue()("jobs_ready", spec=KEY, kind="write") == 1
