"""A server that tells no digest comes back with another model: nothing of it meets a space."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from django.core.management import call_command

from pgembed_django import search, spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Space, Worker
from pgembed_django.ops import status
from pgembed_django.providers import recognition
from pgembed_django.queue.liveness import WorkerRecord
from pgembed_django.queue.work import Work
from pgembed_django.retrieval import query_vectors
from tests import played
from tests.app.models import Note, NoteEmbedding
from tests.db.conftest import make_due

pytestmark = pytest.mark.django_db

NOTE = "app.NoteEmbedding"


@pytest.fixture
def server(settings: Any) -> Iterator[played.OpenAI]:
    """An OpenAI-compatible server that answers whatever model it has."""
    settings.PGEMBED_CANARY_SECONDS = 300
    with played.serving(played.OpenAI(width=64)) as server:
        settings.PGEMBED_PROVIDERS = {
            "default": {
                "BACKEND": "pgembed_django.providers.openai.OpenAIProvider",
                "MODEL": server.model,
                "DIMENSIONS": server.width,
                "OPTIONS": {"base_url": f"{server.url}/v1"},
            }
        }
        query_vectors.vectors.clear()
        yield server
        query_vectors.vectors.clear()


def run(worker: Work) -> None:
    worker.handler.live.outdate()
    while worker.step():
        pass


def space() -> Space:
    return Space.objects.get(spec=NOTE, state="active")


def is_of(server: played.OpenAI, chunk: NoteEmbedding) -> bool:
    """Whether the server's present model has made a vector."""
    return float(np.dot(chunk.embedding, server.vector_of(chunk.passage))) > 0.999


def embed_around_an_exchange(worker: Any, server: played.OpenAI) -> None:
    Note.objects.create(body="trout")
    run(worker)
    server.exchange("other weights")
    Note.objects.create(body="salmon")
    run(worker)


def test_a_model_that_is_exchanged_in_mid_run_stores_nothing(server, make_worker):
    worker = make_worker()
    Note.objects.create(body="trout")
    run(worker)
    assert server.asked[-1] == list(recognition.TEXTS)

    server.exchange("other weights")
    Note.objects.create(body="salmon")
    run(worker)

    assert [one.passage for one in NoteEmbedding.objects.exclude(embedding=None)] == ["trout"]
    job = Job.objects.get(status="pending")
    assert job.attempts == 0
    told = space().exchanged
    assert "has another model than the one that made space" in told
    assert "n_params 0" in told
    assert "n_params 13" in told
    assert "embed_spaces renew" in told


def test_a_search_goes_by_words_even_before_a_worker_has_noticed(server, run_jobs, caplog):
    note = Note.objects.create(body="trout")
    run_jobs()
    assert search(Note, "trout").ranking == "hybrid"

    server.exchange("other weights")

    results = search(Note, "a trout")
    assert (list(results), results.ranking, results.degraded) == ([note], "lexical", True)
    assert "has another model" in caplog.text
    # What was answered before may have been that model's, too.
    assert not query_vectors.vectors._kept


def test_a_search_asks_nobody_once_a_worker_has_noticed(server, run_jobs):
    note = Note.objects.create(body="trout")
    run_jobs()
    search(Note, "trout")
    server.exchange("other weights")
    Note.objects.create(body="salmon")
    run_jobs()
    asked = len(server.asked)

    results = search(Note, "trout")

    assert (list(results), results.ranking) == ([note], "lexical")
    assert len(server.asked) == asked


def test_a_comparison_that_drips_takes_no_query_thread_for_long(server, run_jobs, settings):
    Note.objects.create(body="trout")
    run_jobs()
    settings.PGEMBED_QUERY_SECONDS = 0.1
    server.exchange("")  # so that it is compared again
    server.poison = lambda text: played.DRIP if text in recognition.TEXTS else None

    assert search(Note, "a trout").ranking == "lexical"

    assert not wait([*query_vectors.vectors._coming.values()], timeout=10).not_done


def test_the_former_model_brings_all_back(server, run_jobs):
    Note.objects.create(body="trout")
    run_jobs()
    server.exchange("other weights")
    note = Note.objects.create(body="salmon")
    run_jobs()
    assert search(Note, "salmon").degraded

    server.exchange("")
    run_jobs()
    assert space().exchanged == ""
    # In one transaction, all is stored after the model was last recognized.
    assert not NoteEmbedding.objects.exclude(embedding=None).exists()
    call_command("embed_reconcile", verbosity=0)
    make_due()
    run_jobs()

    query_vectors.vectors.clear()
    results = search(Note, "salmon")
    assert (results[0], results.ranking) == (note, "hybrid")
    assert all(is_of(server, one) for one in NoteEmbedding.objects.all())


def test_behind_a_proxy_what_was_stored_meanwhile_is_taken_back(server, run_jobs):
    """Its connections last, so nothing tells of the exchange before the next comparison."""
    Note.objects.create(body="trout")
    run_jobs()
    server.exchange("other weights", behind_proxy=True)
    Note.objects.create(body="salmon")
    run_jobs()
    [_, salmon] = NoteEmbedding.objects.order_by("pk")
    assert is_of(server, salmon)
    NoteEmbedding.objects.filter(passage="trout").update(created_at="2026-01-01T00:00:00Z")

    spaces.recognize(specs.get(NOTE), using="default", only_exchanged=False)
    assert space().exchanged
    spaces.recognize(specs.get(NOTE), using="default", only_exchanged=True)

    stored = NoteEmbedding.objects.order_by("pk").values_list("passage", "embedding")
    assert [(passage, vector is None) for passage, vector in stored] == [
        ("trout", False),
        ("salmon", True),
    ]


def test_a_renewed_space_is_built_by_the_present_model_and_searched(server, run_jobs):
    note = Note.objects.create(body="trout")
    run_jobs()
    former = space()
    server.exchange("other weights")
    Note.objects.create(body="salmon")
    run_jobs()

    call_command("embed_spaces", "renew", verbosity=0)
    call_command("embed_reconcile", verbosity=0)
    make_due()
    run_jobs()

    new = Space.objects.get(spec=NOTE, state="building")
    assert bytes(new.canary) != bytes(former.canary)
    assert all(is_of(server, one) for one in NoteEmbedding.objects.filter(space=new))
    assert spaces.activate(new, using="default")
    query_vectors.vectors.clear()
    results = search(Note, "trout")
    assert (results[0], results.ranking) == (note, "hybrid")
    # A worker that starts now goes on with it.
    assert [one.pk for one in spaces.ensure(specs.get(NOTE), using="default")] == [new.pk]


def test_a_status_says_that_the_model_was_exchanged(server, run_jobs):
    Note.objects.create(body="trout")
    run_jobs()
    server.exchange("other weights")
    Note.objects.create(body="salmon")
    run_jobs()

    Worker.objects.create(host="one", pid=1, version="1", specs=[NOTE])

    [shown] = status.overview(using="default", specs=[specs.get(NOTE)]).specs

    assert "has another model than the one that made" in shown.verdict.reason
    assert shown.active.exchanged
    out = StringIO()
    call_command("embed_status", "--json", "--spec", NOTE, stdout=out)
    assert json.loads(out.getvalue())["specs"][0]["active"]["exchanged"]
    out = StringIO()
    call_command("embed_spaces", stdout=out)
    assert "exchanged for another model" in out.getvalue()


def test_a_status_tells_the_lost_space_from_the_one_that_fills(server, make_worker, clock):
    worker = make_worker()
    embed_around_an_exchange(worker, server)
    presence = WorkerRecord([NOTE], using="default")

    call_command("embed_spaces", "renew", verbosity=0)
    former, new = Space.objects.filter(spec=NOTE).order_by("pk")
    call_command("embed_reconcile", verbosity=0)
    make_due()
    clock.now += 60
    run(worker)
    presence.report([worker])

    found = status.overview(using="default", specs=[specs.get(NOTE)])
    [shown] = found.specs
    providers = {one.name: one for one in found.providers}
    lost = providers.pop(f"default of space {former.pk}")
    assert lost.is_down
    assert lost.is_declared
    assert f"that made space {former.pk}" in lost.reason
    assert not providers["default"].is_down
    assert providers["default"].specs == (NOTE,)
    assert shown.verdict.state == "degraded"
    assert shown.verdict.reason.startswith(
        f"Searches use full text only until the new space {new.pk} is full (50 % of 2 rows): the "
        f"server has another model than that of space {former.pk}."
    )


def test_a_model_that_is_lost_alone_is_its_provider(server, make_worker):
    worker = make_worker()
    embed_around_an_exchange(worker, server)
    WorkerRecord([NOTE], using="default").report([worker])

    [provider] = status.overview(using="default", specs=[specs.get(NOTE)]).providers

    assert (provider.name, provider.is_down) == ("default", True)


def test_zero_seconds_compare_nothing(server, run_jobs, settings):
    settings.PGEMBED_CANARY_SECONDS = 0
    Note.objects.create(body="trout")
    run_jobs()
    server.exchange("other weights")
    Note.objects.create(body="salmon")
    run_jobs()

    assert NoteEmbedding.objects.exclude(embedding=None).count() == 2
    assert server.asked == [["trout"], ["salmon"]]
    assert space().canary is None


def test_an_exchange_that_was_noted_counts_no_more_where_nothing_is_to_be_compared(
    server, run_jobs, settings
):
    Note.objects.create(body="trout")
    run_jobs()
    server.exchange("other weights")
    Note.objects.create(body="salmon")
    run_jobs()

    settings.PGEMBED_CANARY_SECONDS = 0
    make_due()
    run_jobs()

    assert NoteEmbedding.objects.exclude(embedding=None).count() == 2


def test_a_connection_is_compared_once(server, make_worker, clock):
    worker = make_worker()
    for body in ("trout", "salmon", "perch"):
        Note.objects.create(body=body)
        run(worker)

    assert server.asked == [["trout"], list(recognition.TEXTS), ["salmon"], ["perch"]]


def test_a_server_that_closes_each_connection_is_recognized_too(server, make_worker, monkeypatch):
    embed = server.embed
    monkeypatch.setattr(server, "embed", lambda seen: replace(embed(seen), how="last"))
    Note.objects.create(body="trout")

    run(make_worker())

    assert NoteEmbedding.objects.exclude(embedding=None).count() == 1
    assert server.asked == [["trout"], list(recognition.TEXTS), ["trout"]]


@pytest.mark.parametrize("text", [2, 7], ids=["before it is asked", "at the next batch"])
def test_a_model_that_is_exchanged_before_its_space_knows_it_stores_nothing(
    server, make_worker, settings, text
):
    settings.PGEMBED_BATCH_SIZE = 1
    worker = make_worker()
    Note.objects.create(body="trout")
    Note.objects.create(body="salmon")
    left = iter(range(text - 1))

    def exchange_at_last(_: str) -> None:
        if next(left, None) is None and not server.weights:
            server.exchange("other weights")

    server.poison = exchange_at_last
    run(worker)

    stored = NoteEmbedding.objects.exclude(embedding=None)
    known = np.frombuffer(space().canary or b"", dtype="<f4").reshape(-1, server.width)
    server.weights = "" if text == 7 else "other weights"
    assert not len(known) or np.dot(known[0], server.vector_of(recognition.TEXTS[0])) > 0.999
    assert all(is_of(server, one) for one in stored)
