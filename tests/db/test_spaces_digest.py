"""What a server tells of its model makes a space. While it is down, it tells nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from django.core.management import call_command
from django.db.models.functions import Now

from pgembed_django import search, spaces
from pgembed_django.declaration import specs
from pgembed_django.exceptions import ProviderUnavailable
from pgembed_django.models import Job, Space
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.queue.work import Work
from pgembed_django.retrieval import query_vectors
from tests.app.models import Note, NoteEmbedding
from tests.db.conftest import Maintenance

pytestmark = pytest.mark.django_db

NOTE = "app.NoteEmbedding"


class Tagged(DeterministicProvider):
    """Like Ollama: its server tells the digest of a tag, or is down."""

    is_down: ClassVar[bool] = False

    def model_digest(self) -> str:
        if Tagged.is_down:
            raise ProviderUnavailable("connection refused")
        return f"digest of {self.model}"


@pytest.fixture
def declare(settings: Any) -> Iterator[Callable[..., None]]:
    """Do what a worker does at its start, with that model in its settings."""

    def declare(model: str, *, is_down: bool = False) -> None:
        Tagged.is_down = is_down
        backend = f"{__name__}.Tagged"
        settings.PGEMBED_PROVIDERS = {
            "default": {"BACKEND": backend, "MODEL": model, "DIMENSIONS": 64}
        }
        spaces.ensure(specs.get(NOTE), using="default")

    yield declare
    Tagged.is_down = False


def run(worker: Work) -> None:
    while worker.step():
        pass


def switch() -> None:
    spaces.activate(Space.objects.get(spec=NOTE, state="building"), using="default")


def states() -> list[tuple[str, str, str]]:
    found = Space.objects.filter(spec=NOTE).order_by("pk")
    return list(found.values_list("model", "model_digest", "state"))


def test_a_digest_that_was_unknown_at_first_is_learned(declare):
    declare("one", is_down=True)
    assert states() == [("one", "", "active")]

    declare("one")

    assert states() == [("one", "digest of one", "active")]


def test_a_server_that_stays_down_is_told_once_and_again_after_it_was_up(declare, caplog):
    def told() -> int:
        return sum(one.event == "pgembed.digest_unknown" for one in caplog.records)

    declare("one")
    for _ in range(3):  # where its table is missing, a spec is asked for every few seconds
        declare("one", is_down=True)
    assert told() == 1

    declare("one")
    declare("one", is_down=True)

    assert told() == 2


def test_a_retired_model_is_not_reopened_because_its_server_is_down(declare):
    declare("one")
    declare("two")
    switch()

    declare("one", is_down=True)

    assert states() == [("one", "digest of one", "retired"), ("two", "digest of two", "active")]


def test_a_model_that_is_being_built_goes_on_while_a_retired_ones_server_is_down(declare):
    declare("one")
    declare("two")
    switch()
    declare("three")

    declare("one", is_down=True)  # an old worker that is started anew

    assert states()[-1] == ("three", "digest of three", "building")


@pytest.mark.django_db(transaction=True)  # the worker has connections of its own
def test_a_space_that_is_reopened_learns_the_digest_of_a_retired_one(declare):
    declare("one", is_down=True)
    declare("two")
    switch()
    declare("one")
    declare("three")
    spaces.reopen(Space.objects.get(model="one", model_digest=""), using="default")

    declare("one")

    assert states() == [
        ("one", "digest of one", "building"),
        ("two", "digest of two", "active"),
        ("one", "digest of one", "retired"),
        ("three", "digest of three", "retired"),
    ]
    call_command("embed_worker", drain=True, verbosity=0)


@pytest.mark.parametrize("is_searched", [False, True])
def test_a_space_that_was_begun_anew_is_known_by_its_digest_too(declare, is_searched):
    declare("one", is_down=True)
    declare("two")
    switch()
    pruned = Space.objects.get(spec=NOTE, model="one")
    spaces.mark_pruned(pruned, using="default")
    declare("one", is_down=True)
    begun = spaces.reopen(Space.objects.get(pk=pruned.pk), using="default")
    if is_searched:
        switch()
    declare("one")
    before = states()
    assert "digest of one" in {digest for _, digest, _ in before}

    pruned.refresh_from_db()
    assert spaces.renewed(pruned, using="default") == begun
    assert spaces.reopen(pruned, using="default") is None

    assert states() == before


class Odd(DeterministicProvider):
    """A class of the user's own, whose digest is what a test has it be."""

    told: ClassVar[object] = None

    def model_digest(self) -> Any:
        return Odd.told


@pytest.mark.parametrize("told", [b"bytes", 5, object()])
def test_a_digest_that_is_no_string_is_not_known(settings, caplog, told):
    settings.PGEMBED_PROVIDERS = {
        "default": {"BACKEND": f"{__name__}.Odd", "MODEL": "odd", "DIMENSIONS": 64}
    }
    [spec] = [spec for spec in specs.all() if spec.key == NOTE]
    Odd.told = told

    [space] = spaces.ensure(spec, using="default")

    assert space.model_digest == ""
    assert f"model_digest() returned {type(told).__name__}" in caplog.text


def test_a_digest_is_stored_clean(settings):
    settings.PGEMBED_PROVIDERS = {
        "default": {"BACKEND": f"{__name__}.Odd", "MODEL": "odd", "DIMENSIONS": 64}
    }
    [spec] = [spec for spec in specs.all() if spec.key == NOTE]
    Odd.told = "sha\0 \ud800"

    [space] = spaces.ensure(spec, using="default")

    assert space.model_digest == "sha \ufffd"


class Pulled(DeterministicProvider):
    """A tag that is pulled again under a running server."""

    told: ClassVar[str | Exception] = "sha-one"

    def model_digest(self) -> str:
        if isinstance(Pulled.told, Exception):
            raise Pulled.told
        return Pulled.told


def test_a_query_is_not_embedded_by_other_weights_than_the_space(settings, run_jobs, caplog):
    settings.PGEMBED_PROVIDERS = {
        "default": {"BACKEND": f"{__name__}.Pulled", "MODEL": "tag", "DIMENSIONS": 64}
    }
    Pulled.told = "sha-one"
    note = Note.objects.create(body="trout")
    run_jobs()
    query_vectors.vectors.clear()

    Pulled.told = ProviderUnavailable("The list of models is not there just now.")
    assert search(Note, "trout").ranking == "hybrid"

    Pulled.told = "sha-two"
    query_vectors.vectors.clear()
    results = search(Note, "trout")
    assert (list(results), results.ranking, results.degraded) == ([note], "lexical", True)
    assert "now has other weights" in caplog.text

    Note.objects.update(body="A trout.")  # so that it is in the new space
    run_jobs()
    old, new = Space.objects.filter(spec=NOTE).order_by("pk")
    assert (old.model_digest, new.model_digest) == ("sha-one", "sha-two")
    assert spaces.activate(new, using="default")
    query_vectors.vectors.clear()
    results = search(Note, "trout")
    assert (list(results), results.ranking, results.degraded) == ([note], "hybrid", False)


def test_what_is_written_is_not_embedded_by_other_weights_than_the_space(settings, make_worker):
    """The former vectors are served, and the new text goes to the new space alone."""
    settings.PGEMBED_PROVIDERS = {
        "default": {"BACKEND": f"{__name__}.Pulled", "MODEL": "tag", "DIMENSIONS": 64}
    }
    Pulled.told = "sha-one"
    note = Note.objects.create(body="trout")
    worker = make_worker()
    run(worker)

    Pulled.told = "sha-two"
    _, new = spaces.ensure(specs.get(NOTE), using="default")  # as a worker does once a minute
    Note.objects.update(body="A salmon.")
    worker.handler.live.outdate()
    run(worker)

    chunks = NoteEmbedding.objects.filter(source_id=note.pk)
    assert set(chunks.values_list("space__model_digest", "passage")) == {
        ("sha-one", "trout"),
        ("sha-two", "A salmon."),
    }
    assert "now has other weights" in Job.objects.get(status="pending").last_error
    old, _ = spaces.live(specs.get(NOTE), using="default")
    assert (
        "now has other weights"
        in worker.handler.hindrances(for_people=True).paused[f"default of space {old.pk}"]
    )
    assert spaces.last_gap(specs.get(NOTE), new, using="default") is None

    Pulled.told = "sha-one"  # that was a mistake
    spaces.ensure(specs.get(NOTE), using="default")
    Job.objects.update(run_at=Now())
    worker.handler.live.outdate()
    run(worker)

    assert set(chunks.values_list("space__model_digest", "passage")) == {
        ("sha-one", "A salmon."),
        ("sha-two", "A salmon."),
    }
    assert worker.handler.hindrances(for_people=True).paused == {}


@pytest.mark.django_db(transaction=True)  # the command has a transaction of its own
def test_weights_that_are_pulled_once_more_say_how_to_go_back_to_their_space(
    settings, make_worker, caplog
):
    settings.PGEMBED_PROVIDERS = {
        "default": {"BACKEND": f"{__name__}.Pulled", "MODEL": "tag", "DIMENSIONS": 64}
    }
    Pulled.told = "sha-one"
    Note.objects.create(body="trout")
    worker = make_worker()
    run(worker)
    Pulled.told = "sha-two"
    former, new = spaces.ensure(specs.get(NOTE), using="default")
    spaces.activate(new, using="default")

    Pulled.told = "sha-one"
    spaces.ensure(specs.get(NOTE), using="default")
    Note.objects.update(body="A salmon.")
    worker.handler.live.outdate()
    run(worker)

    [told] = [one for one in caplog.records if one.event == "pgembed.space_not_reopened"]
    assert f"manage.py embed_spaces prune {former.pk}, " in told.getMessage()
    assert f"then embed_spaces rollback {former.pk}" in told.getMessage()
    assert "prune, then rollback" in Job.objects.get(status="pending").last_error
    call_command("embed_spaces", "prune", str(former.pk))
    call_command("embed_spaces", "rollback", str(former.pk))
    Job.objects.update(run_at=Now())
    worker.handler.live.outdate()
    run(worker)
    switch()
    active = spaces.active(specs.get(NOTE), using="default")
    found = NoteEmbedding.objects.get(space=active)
    assert (active.model_digest, found.passage) == ("sha-one", "A salmon.")


def test_a_space_that_is_gone_back_to_gets_no_other_weights_vectors(settings, make_worker):
    """Its model is not the declared one: who asks for that one's digest knows nothing of it."""

    def declare(backend: str, model: str) -> None:
        settings.PGEMBED_PROVIDERS = {
            "default": {"BACKEND": backend, "MODEL": model, "DIMENSIONS": 64}
        }

    spec = specs.get(NOTE)
    declare(f"{__name__}.Pulled", "tag")
    Pulled.told = "sha-one"
    Note.objects.create(body="trout")
    run(make_worker())
    declare(f"{__name__}.Tagged", "two")
    former, new = spaces.ensure(spec, using="default")
    spaces.activate(new, using="default")

    Pulled.told = "sha-two"
    assert spaces.reopen(former, using="default")
    Maintenance(
        {NOTE: spec},
    ).upkeep.open_spaces()
    Note.objects.update(body="A salmon.")
    run(make_worker())

    chunks = NoteEmbedding.objects.values_list("space__model", "passage")
    assert set(chunks) == {("tag", "trout"), ("two", "A salmon.")}
