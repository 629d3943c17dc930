"""One trace from a save to its vectors."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer, format_span_id, format_trace_id

from pgembed_django.contrib import tracing
from pgembed_django.contrib.tracing.spans import Spans, carry
from pgembed_django.models import Job
from tests.app.models import Article, Category, Note

pytestmark = pytest.mark.django_db


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provided(exporter: InMemorySpanExporter) -> TracerProvider:
    """A provider of our own: the global one can be set only once in a process."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def tracer(provided: TracerProvider) -> Tracer:
    return provided.get_tracer("the application")


@pytest.fixture
def carried() -> Iterator[None]:
    with connection.execute_wrapper(carry):
        yield


@pytest.fixture
def spans(provided: TracerProvider) -> Iterator[Spans]:
    with Spans(provided) as one:
        yield one


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def traceparent(span: trace.Span) -> str:
    context = span.get_span_context()
    flags = f"{context.trace_flags:02x}"
    return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{flags}"


def test_a_saves_trace_goes_on_to_its_vectors(
    tracer, carried, spans, exporter, provider, make_article, run_jobs
):
    with tracer.start_as_current_span("save") as save:
        make_article()
    run_jobs()

    [job] = named(exporter, "pgembed.job")
    assert job.context.trace_id == save.get_span_context().trace_id
    assert job.parent.span_id == save.get_span_context().span_id
    assert job.kind is SpanKind.CONSUMER
    assert job.attributes["pgembed.spec"] == "app.ArticleEmbedding"
    assert job.attributes["pgembed.outcome"] == "completed"
    assert job.attributes["pgembed.embedded"] == 1
    assert job.attributes["pgembed.waited_seconds"] >= 0
    for name in ("pgembed.claim", "pgembed.embed", "pgembed.store"):
        [span] = named(exporter, name)
        assert span.parent is None
        assert [link.context for link in span.links] == [job.context], name
    [embed] = named(exporter, "pgembed.embed")
    assert embed.attributes["gen_ai.operation.name"] == "embeddings"
    assert embed.end_time >= embed.start_time


def test_a_batch_is_linked_to_every_save_in_it(
    tracer, carried, spans, exporter, provider, make_article, run_jobs
):
    for title in ("one", "two"):
        with tracer.start_as_current_span(title):
            make_article(title=title)
    make_article(title="nobody traces this one")
    run_jobs()

    [embed] = named(exporter, "pgembed.embed")
    jobs = named(exporter, "pgembed.job")
    assert len({job.context.trace_id for job in jobs}) == 2
    assert {link.context.span_id for link in embed.links} == {job.context.span_id for job in jobs}
    assert embed.attributes["pgembed.rows"] == 3


def test_a_jobs_span_tells_how_it_failed_and_never_the_text(
    tracer, carried, spans, exporter, provider, make_article, run_jobs
):
    with tracer.start_as_current_span("save"):
        make_article(title="poison", contents="a secret")
        make_article(title="trouble")
    run_jobs()

    outcomes = {job.attributes["pgembed.outcome"]: job for job in named(exporter, "pgembed.job")}
    assert set(outcomes) == {"failed", "retried"}
    assert outcomes["failed"].status.status_code is StatusCode.ERROR
    assert outcomes["failed"].status.description == "This text is poison."
    told = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert "secret" not in told


def test_an_outage_ends_the_jobs_span_and_marks_the_batch(
    tracer, carried, spans, exporter, provider, make_article, run_jobs
):
    provider.is_down = True
    with tracer.start_as_current_span("save"):
        make_article()
    run_jobs()

    [job] = named(exporter, "pgembed.job")
    assert job.attributes["pgembed.outcome"] == "released"
    [embed] = named(exporter, "pgembed.embed")
    assert embed.status.status_code is StatusCode.ERROR


def test_a_job_that_comes_back_stays_in_its_trace(
    tracer, carried, spans, exporter, provider, make_article, run_jobs
):
    with tracer.start_as_current_span("save"):
        make_article(title="trouble")
    run_jobs()
    Job.objects.update(run_at="2000-01-01T00:00:00Z")
    run_jobs()

    first, second = named(exporter, "pgembed.job")
    assert first.context.trace_id == second.context.trace_id
    assert second.attributes["pgembed.attempts"] == 1


def test_what_is_held_at_the_end_has_its_span_ended(
    tracer, carried, provided, exporter, make_worker, make_article
):
    with tracer.start_as_current_span("save"):
        make_article()
    with Spans(provided):
        make_worker().step()
        assert not named(exporter, "pgembed.job")

    [job] = named(exporter, "pgembed.job")
    assert job.attributes["pgembed.outcome"] == "released"


def test_a_traceparent_that_is_none_harms_nobody(spans, exporter, make_article, run_jobs):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL pgembed.traceparent = %s", ["no such thing " * 20])
    make_article()
    assert len(Job.objects.get().traceparent) == 55
    run_jobs()

    assert named(exporter, "pgembed.job")[0].parent is None


def test_writes_of_whatever_kind_carry_their_trace(tracer, carried):
    with tracer.start_as_current_span("save") as save:
        article = Article.objects.create(title="a", published_time="2026-01-01T00:00:00Z")
        Note.objects.bulk_create([Note(body="a"), Note(body="b")])
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO app_page (slug, body) VALUES ('a', 'b')")
        assert set(Job.objects.values_list("traceparent", flat=True)) == {traceparent(save)}
        assert Job.objects.count() == 4

    Job.objects.all().delete()
    with tracer.start_as_current_span("update") as update:
        Article.objects.filter(pk=article.pk).update(title="b")
    assert Job.objects.get().traceparent == traceparent(update)


def test_spans_that_follow_each_other_in_a_transaction_are_told_apart(tracer, carried):
    with tracer.start_as_current_span("first") as first:
        one = Note.objects.create(body="a")
    with tracer.start_as_current_span("second") as second:
        two = Note.objects.create(body="b")

    found = dict(Job.objects.values_list("source_pk", "traceparent"))
    assert found == {str(one.pk): traceparent(first), str(two.pk): traceparent(second)}


def test_nothing_is_asked_where_no_span_is_recording_or_nothing_is_watched(
    tracer, carried, django_assert_num_queries
):
    with django_assert_num_queries(1):
        Note.objects.create(body="a")
    assert Job.objects.get().traceparent is None
    with tracer.start_as_current_span("save"), django_assert_num_queries(3):
        Category.objects.create(name="nobody embeds it")
        list(Note.objects.all())
        Note.objects.all().exists()


@pytest.mark.django_db(transaction=True)
def test_a_write_in_autocommit_carries_its_trace_and_leaves_none_behind(tracer, carried):
    with tracer.start_as_current_span("save") as save:
        Note.objects.create(body="a")
        Note.objects.bulk_create([Note(body="b"), Note(body="c")])
    assert connection.get_autocommit()
    assert set(Job.objects.values_list("traceparent", flat=True)) == {traceparent(save)}

    note = Note.objects.create(body="outside")
    assert Job.objects.get(source_pk=str(note.pk)).traceparent is None


@pytest.mark.django_db(transaction=True)
def test_an_error_in_a_traced_write_rolls_back_no_more_than_it_would(tracer, carried):
    with tracer.start_as_current_span("save"), transaction.atomic():
        note = Note.objects.create(body="kept")
        with pytest.raises(Exception, match="duplicate key"), transaction.atomic():
            Note.objects.create(pk=note.pk, body="again")
        Note.objects.filter(pk=note.pk).update(body="kept, too")

    assert Note.objects.get().body == "kept, too"
    assert Job.objects.get().traceparent is not None


def test_a_write_by_hand_may_say_whose_trace_it_is_in(second_connection):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    second_connection.execute("SELECT set_config('pgembed.traceparent', %s, true)", [parent])
    second_connection.execute("INSERT INTO app_page (slug, body) VALUES ('a', 'b')")

    found = second_connection.execute("SELECT traceparent FROM pgembed_job").fetchall()
    assert found == [(parent,)]
    second_connection.rollback()


def test_connections_carry_traces_only_where_the_settings_say_so(settings, monkeypatch):
    from django.db.backends.signals import connection_created

    tracing.install()
    assert not any("pgembed-tracing" in receiver[0] for receiver in connection_created.receivers)
    settings.PGEMBED_TRACING = True
    tracing.install()
    try:
        connection_created.send(sender=type(connection), connection=connection)
        connection_created.send(sender=type(connection), connection=connection)
        assert connection.execute_wrappers.count(carry) == 1
    finally:
        connection.execute_wrappers.remove(carry)
        connection_created.disconnect(dispatch_uid="pgembed-tracing")


def test_tracing_without_the_extra_is_an_error_of_the_settings(settings, monkeypatch):
    settings.PGEMBED_TRACING = True
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)

    with pytest.raises(Exception, match=r"pip install 'pgembed-django\[opentelemetry\]'"):
        call_command("check")
    with pytest.raises(Exception, match=r"pip install 'pgembed-django\[opentelemetry\]'"):
        tracing.of_worker()


def test_the_extra_is_looked_for_and_not_its_namespace(monkeypatch):
    assert tracing.is_installed()
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    assert not tracing.is_installed()
