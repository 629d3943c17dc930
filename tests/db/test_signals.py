"""The signal ``embedded``: what a project does once vectors are stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pgembed_django import conf, embed_now
from pgembed_django.declaration import specs
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.models import Job
from pgembed_django.queue.work import Work
from pgembed_django.signals import embedded
from pgembed_django.testing import assert_fresh
from tests.app.models import Article, Note

pytestmark = pytest.mark.django_db


@pytest.fixture
def on_embedded() -> Iterator[Callable[..., None]]:
    connected = []

    def connect(receiver: Callable[..., None], **options: Any) -> None:
        embedded.connect(receiver, weak=False, **options)
        connected.append((receiver, options))

    yield connect
    for receiver, options in connected:
        embedded.disconnect(receiver, **options)


@pytest.fixture
def sent(on_embedded) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    on_embedded(lambda signal, **fields: found.append(fields))
    return found


def test_the_rows_of_each_model_are_told_with_their_keys(sent, provider, run_jobs, make_article):
    notes = [Note.objects.create(body=f"trout {n}") for n in range(2)]
    article = make_article()

    run_jobs()

    assert sorted(sent, key=lambda one: one["spec"]) == [
        {
            "sender": Article,
            "spec": "app.ArticleEmbedding",
            "keys": [str(article.pk)],
            "using": "default",
        },
        {
            "sender": Note,
            "spec": "app.NoteEmbedding",
            "keys": [str(note.pk) for note in notes],
            "using": "default",
        },
    ]


def test_a_receiver_of_one_model_hears_of_no_other(on_embedded, provider, run_jobs, make_article):
    heard = []
    on_embedded(lambda sender, **_: heard.append(sender), sender=Note)
    make_article()
    Note.objects.create(body="trout")

    run_jobs()

    assert heard == [Note]


def test_it_is_sent_by_embed_now_too(sent, provider):
    note = Note.objects.create(body="trout")

    embed_now(note)

    assert [one["keys"] for one in sent] == [[str(note.pk)]]


def test_an_error_in_a_receiver_is_logged_and_the_worker_goes_on(
    on_embedded, sent, provider, run_jobs, caplog
):
    on_embedded(lambda **_: 1 / 0)
    note = Note.objects.create(body="trout")

    assert run_jobs() == 1

    assert_fresh(note)
    assert "division by zero" in caplog.text
    assert len(sent) == 1


def test_rows_without_vectors_are_not_told(sent, provider, run_jobs, make_article):
    Note.objects.create(body="poison")
    article = make_article(published_time=None)
    Job.objects.create(spec="app.ArticleEmbedding", source_pk=str(article.pk))

    assert run_jobs() == 1

    assert sent == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("inline", [True, False], ids=["by the loop", "by the thread"])
def test_it_is_sent_after_the_commit_and_from_the_loop(on_embedded, provider, connect, inline):
    Note.objects.create(body="trout")
    other = connect(autocommit=True)
    seen = []

    def look(keys: list[str], **_: Any) -> None:
        rows = other.execute("SELECT source_id::text FROM app_noteembedding").fetchall()
        seen.append((keys, [key for [key] in rows], threading.current_thread()))

    on_embedded(look)
    known = {spec.key: spec for spec in specs.all()}
    # A batch of one: else the loop stores so few rows itself.
    settings = conf.Settings(providers=conf.current().providers, batch_size=1)
    handler = EmbeddingHandler(known, using="default", settings=settings)
    handler.prepare()
    work = Work(handler, using="default", worker_id=1, settings=settings, inline=inline)
    try:
        while not work.completed:
            work.step()
            work.completing.finish()
    finally:
        work.close()

    [(keys, stored, thread)] = seen
    assert keys == stored
    assert thread is threading.current_thread()
