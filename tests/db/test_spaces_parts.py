"""A row is embedded in the active space and in the next one. Neither waits for the other."""

from __future__ import annotations

import threading

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.db.models.functions import Now

from pgembed_django import conf, spaces
from pgembed_django.core import database, locks
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Space, StagedVector
from pgembed_django.queue import jobs
from pgembed_django.queue.work import Work
from pgembed_django.spaces import lifecycle, reconcile
from tests.app.models import Article, ArticleComment, ArticleCommentEmbedding, Note, NoteEmbedding
from tests.db.conftest import Maintenance
from tests.providers import Moody

pytestmark = pytest.mark.django_db

NOTE = "app.NoteEmbedding"


def run(worker: Work) -> None:
    while worker.step():
        pass


def build() -> None:
    settings = conf.current()
    spec = specs.get(NOTE)
    Maintenance(
        {NOTE: spec},
        settings=settings,
    ).upkeep.build()


def texts(model: str) -> set[str]:
    chunks = NoteEmbedding.objects.filter(space__model=model, embedding__isnull=False)
    return set(chunks.values_list("passage", flat=True))


def test_what_is_written_while_the_active_model_is_down_is_stored_in_the_next_space(
    swap, make_worker
):
    Moody.down = {"old"}
    Note.objects.update(body="salmon")
    worker = make_worker()
    run(worker)

    assert texts("new") == {"salmon"}
    assert texts("old") == {f"trout {number}" for number in range(5)}
    waiting = Job.objects.filter(status="pending")
    assert list(waiting.values_list("attempts", "last_error")) == [(0, "connection refused")] * 5


@pytest.mark.parametrize("fault", ["down", "refusing"])
def test_nothing_is_stored_in_a_space_that_is_pruned_while_the_active_model_fails(
    swap, make_worker, fault
):
    if fault == "down":
        Moody.down = {"old"}
    else:
        Moody.refusing = {"old": "salmon"}
    Note.objects.update(body="salmon")
    worker = make_worker()
    worker.step()  # it is planned for both

    spaces.cancel(NOTE, using="default")
    swap.refresh_from_db()
    assert spaces.mark_pruned(swap, using="default")  # it has no vectors yet
    run(worker)

    assert not NoteEmbedding.objects.filter(space=swap).exists()
    assert texts("old") == {f"trout {number}" for number in range(5)}


def test_it_is_embedded_once_however_long_the_active_model_is_down(swap, make_worker, clock):
    Moody.down = {"old"}
    note = Note.objects.first()
    Note.objects.filter(pk=note.pk).update(body="salmon")
    worker = make_worker()
    for _ in range(5):
        run(worker)
        clock.now += 100
        Job.objects.update(run_at=Now())
    assert Moody.asked == [("new", "salmon")]

    Moody.down = set()
    run(worker)
    assert Moody.asked == [("new", "salmon"), ("old", "salmon")]
    assert "salmon" in texts("old")
    assert not Job.objects.filter(source_pk=str(note.pk), status="pending")


def test_the_next_space_is_filled_and_switched_to_while_the_active_model_is_down(
    swap, make_worker, run_jobs
):
    Moody.down = {"old"}
    worker = make_worker(batch_size=2, concurrency=1)
    Note.objects.filter(body="trout 0").update(body="salmon")
    run(worker)
    build()  # finds the others
    run(worker)
    build()

    assert spaces.active(specs.get(NOTE), using="default") == swap
    assert texts("new") == {"salmon", "trout 1", "trout 2", "trout 3", "trout 4"}
    # And the job that has waited has nothing left to do.
    Moody.asked.clear()
    Job.objects.update(run_at=Now())
    worker.handler.live.outdate()
    run(worker)
    assert (Moody.asked, Job.objects.filter(status="pending").count()) == ([], 0)


def test_what_the_next_model_has_embedded_of_a_long_text_is_kept_while_it_is_down(
    swap, make_worker, clock, settings
):
    """Though the text is whole in the other space by then, and what is staged there is deleted."""
    note = Note.objects.first()
    settings.PGEMBED_BATCH_SIZE = 2
    words = [f"word{number}" for number in range(600)]
    Note.objects.filter(pk=note.pk).update(body=" ".join(words))
    worker = make_worker()
    Moody.fatal = {"new": words[-1]}
    run(worker)
    assert Moody.down == {"new"}
    assert not Job.objects.filter(status="pending")
    assert words[-1] in "".join(texts("old"))

    Moody.down, Moody.fatal = set(), {}
    clock.now += 100
    jobs.enqueue(NOTE, [str(note.pk)], kind="reconciler", priority=0, using="default")
    run(worker)

    assert len(Moody.asked) == len(set(Moody.asked))
    assert texts("new") == {text for text in texts("old") if "trout" not in text}
    assert not StagedVector.objects.exists()


def test_it_is_embedded_once_where_a_migration_sets_the_spec_aside(swap, make_worker, clock):
    Moody.down = {"old"}
    Note.objects.filter(pk=Note.objects.first().pk).update(body="salmon")
    worker = make_worker()
    worker.step()
    rename = "ALTER TABLE app_noteembedding RENAME {} TO {}"
    database.execute("default", rename.format("was_cut", "was_clipped"))
    run(worker)
    assert list(worker.handler.units.quarantined) == [specs.get(NOTE)]
    database.execute("default", rename.format("was_clipped", "was_cut"))

    clock.now += 100
    Job.objects.update(run_at=Now())
    run(worker)

    assert "salmon" in texts("new")
    assert Moody.asked == [("new", "salmon")]


def test_more_than_one_batch_is_waited_for(swap, make_worker):
    """Units are given back when the next model has had them, not when the active one is down."""
    Moody.down = {"old"}
    Note.objects.update(body="salmon")
    run(make_worker(batch_size=1, concurrency=1))

    assert NoteEmbedding.objects.filter(space=swap, passage="salmon").count() == 5


def test_what_the_next_model_refuses_is_stored_in_the_space_that_is_searched(swap, make_worker):
    Moody.refusing = {"new": "long"}
    Note.objects.filter(body="trout 0").update(body="a long text")
    run(make_worker())

    assert "a long text" in texts("old")
    assert set(Job.objects.values_list("status", flat=True)) == {"succeeded"}

    reconcile.reconcile_once(specs.get(NOTE), using="default")
    run(make_worker())
    assert "too long" in Job.objects.get(status="failed").last_error
    build()
    assert spaces.active(specs.get(NOTE), using="default") == swap


def test_what_the_active_model_refuses_is_stored_in_the_next_space(swap, make_worker):
    Moody.refusing = {"old": "long"}
    Note.objects.filter(body="trout 0").update(body="a long text")
    run(make_worker())

    assert "a long text" in texts("new")
    assert "trout 0" in texts("old")
    assert "too long" in Job.objects.get(status="failed").last_error


def test_a_space_that_has_fallen_behind_is_not_taken_for_one_that_is_ahead(
    swap, make_worker, run_jobs
):
    """Of two texts that differ, the next space's is the newer one only where that is known."""
    reconcile.reconcile_once(specs.get(NOTE), using="default")
    run(make_worker())
    NoteEmbedding.objects.filter(space=swap, passage="trout 0").update(text_digest=b"older")

    build()

    assert spaces.active(specs.get(NOTE), using="default") != swap


def test_what_fills_the_next_space_waits_for_its_model(swap, make_worker, clock):
    """It is not completed without having done anything, only to be found missing again."""
    Moody.down = {"new"}
    reconcile.reconcile_once(specs.get(NOTE), using="default")
    worker = make_worker()
    run(worker)

    fills = Job.objects.filter(kind="reconciler")
    assert set(fills.values_list("status", "attempts")) == {("pending", 0)}
    assert reconcile.reconcile_once(specs.get(NOTE), using="default") == 0

    Moody.down = set()
    clock.now += 100
    fills.update(run_at=Now())
    run(worker)
    assert (len(texts("new")), fills.count()) == (5, 0)


def test_what_is_written_while_the_next_model_is_down_does_not_wait_for_it(swap, make_worker):
    Moody.down = {"new"}
    Note.objects.filter(body="trout 0").update(body="salmon")
    run(make_worker())

    assert "salmon" in texts("old")
    assert not Job.objects.filter(status="pending").exists()


@pytest.mark.parametrize("new_is", ["down", "refusing"])
def test_what_is_written_just_after_the_switch_is_not_left_to_the_former_space(
    swap, make_worker, new_is
):
    """A worker learns of the switch seconds later."""
    reconcile.reconcile_once(specs.get(NOTE), using="default")
    worker = make_worker()
    run(worker)
    Note.objects.filter(body="trout 0").update(body="salmon")
    build()
    assert spaces.active(specs.get(NOTE), using="default") == swap
    if new_is == "down":
        Moody.down = {"new"}
    else:
        Moody.refusing = {"new": "salmon"}
    run(worker)

    [job] = Job.objects.exclude(status="succeeded")
    assert job.status == ("pending" if new_is == "down" else "failed")


@pytest.mark.parametrize("old_is", ["down", "refusing"])
def test_what_the_former_model_refuses_just_after_the_switch_does_not_fail(
    swap, make_worker, old_is
):
    reconcile.reconcile_once(specs.get(NOTE), using="default")
    worker = make_worker(max_crashes=0)
    run(worker)
    Note.objects.filter(body="trout 0").update(body="salmon")
    build()
    assert spaces.active(specs.get(NOTE), using="default") == swap
    if old_is == "down":
        Moody.fatal = {"old": "salmon"}
    else:
        Moody.refusing = {"old": "salmon"}
    run(worker)

    assert set(Job.objects.values_list("status", flat=True)) == {"succeeded"}
    assert "salmon" in texts("new")


def test_nothing_is_stored_in_a_space_that_was_retired_since_it_was_planned(swap, make_worker):
    Note.objects.filter(body="trout 0").update(body="salmon")
    worker = make_worker()
    worker.step()
    spaces.cancel(NOTE, using="default")

    run(worker)

    assert "salmon" in texts("old")
    assert not NoteEmbedding.objects.filter(space=swap)


def test_what_is_kept_of_a_row_whose_job_is_given_back_is_stored_once(swap, make_worker):
    """A second time is refused, but only as it commits: chunks may change places."""
    article = Article.objects.create(title="not embedded")
    ArticleComment.objects.create(article=article, text="The pike sleeps.\n\nThe carp sleeps.")
    worker = make_worker()
    worker.step()  # both chunks are in one batch
    spec = specs.get("app.ArticleCommentEmbedding")
    spaces.cancel(spec.key, using="default")
    for space in Space.objects.filter(spec=spec.key, state="retired"):
        spaces.reopen(space, using="default")

    worker.step()

    assert Job.objects.get(spec=spec.key).claims == 2
    assert ArticleCommentEmbedding.objects.count() == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_new_row", [False, True])
def test_no_space_becomes_active_without_what_was_stored_since_it_was_found_full(
    swap, make_worker, monkeypatch, is_new_row
):
    reconcile.reconcile_once(specs.get(NOTE), using="default")
    worker = make_worker()
    run(worker)
    found_full, goes_on = threading.Event(), threading.Event()
    activate = spaces.activate

    def activate_later(space: Space, *, using: str) -> bool:
        found_full.set()
        assert goes_on.wait(30)
        return activate(space, using=using)

    monkeypatch.setattr(spaces, "activate", activate_later)
    building = threading.Thread(target=lambda: (build(), connections["default"].close()))
    building.start()
    assert found_full.wait(30)
    Moody.down = {"new"}
    if is_new_row:
        Note.objects.create(body="salmon")
    else:
        Note.objects.filter(body="trout 0").update(body="salmon")
    run(worker)  # to be stored without the new space
    goes_on.set()
    building.join()
    run(worker)

    assert spaces.active(specs.get(NOTE), using="default") == swap
    assert Job.objects.filter(status="pending").exists()
    Moody.down = set()
    Job.objects.update(run_at=Now())
    run(make_worker())
    assert "salmon" in texts("new")


@pytest.mark.django_db(transaction=True)
def test_a_space_does_not_become_active_while_a_unit_is_stored_without_it(
    swap, make_worker, second_connection
):
    reconcile.reconcile_once(specs.get(NOTE), using="default")
    run(make_worker())
    second_connection.execute(locks.SHARE, {"name": lifecycle.LAST_LOOK, "number": swap.pk})

    build()
    assert spaces.active(specs.get(NOTE), using="default") != swap

    second_connection.commit()
    build()
    assert spaces.active(specs.get(NOTE), using="default") == swap


@pytest.mark.django_db(transaction=True)
def test_a_drain_that_replaces_a_model_that_never_answered_is_well(declare, capsys):
    Moody.down = {"old"}
    Note.objects.create(body="salmon")
    with pytest.raises(CommandError, match="1 still waiting for a provider that is down"):
        call_command("embed_worker", drain=True, verbosity=0)

    declare("new")
    Job.objects.update(run_at=Now())
    call_command("embed_worker", drain=True)

    assert texts("new") == {"salmon"}
    Job.objects.update(run_at=Now())  # it may be backing off, for the model that is retired now
    call_command("embed_worker", drain=True)
    assert not Job.objects.filter(status="pending").exists()
    capsys.readouterr()
    call_command("embed_worker", drain=True)
    assert "Nothing was waiting." in capsys.readouterr().out


def test_a_unit_is_given_back_though_its_space_has_another_provider_by_now(swap, make_worker):
    Moody.down = {"old"}
    Note.objects.update(body="salmon")
    worker = make_worker(batch_size=1, concurrency=1)
    worker.step()
    worker.step()
    [unit] = worker.handler.units.by_id.values()
    assert [part.failure is None for part in unit.parts] == [False, True]  # the next has more

    Space.objects.filter(model="old").update(backend="shop.Removed")
    worker.handler.live.outdate()
    run(worker)

    assert not Job.objects.filter(status="running").exists()
    assert worker.held.is_empty


def test_a_worker_that_stops_keeps_what_is_whole_in_one_space(swap, make_worker):
    """Else the same text is paid for twice."""
    *others, note = Note.objects.order_by("pk")
    worker = make_worker(batch_size=2, concurrency=1)
    keys = [str(other.pk) for other in others]
    jobs.enqueue(NOTE, keys, kind=Job.Kind.RECONCILER, priority=0, using="default")
    worker.step()
    Note.objects.filter(pk=note.pk).update(body="salmon")
    worker.claim()
    while ("old", "salmon") not in Moody.asked:  # the other model is at work on a batch
        worker.handler.planner.step()
        worker.handler.embedder.send()
    worker.handler.embedder.collect()
    assert ("new", "salmon") not in Moody.asked

    worker.release_unsent()
    worker.release()

    assert "salmon" in texts("old")
    run(make_worker())
    assert sorted(Moody.asked).count(("old", "salmon")) == 1
    assert "salmon" in texts("new")
