"""What is written, emptied or refused around a switch is found with its present text after it."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from django.db import Error, connections

from pgembed_django import spaces
from pgembed_django.core import database
from pgembed_django.declaration import specs
from pgembed_django.exceptions import ProviderUnavailable
from pgembed_django.models import Job, Space
from pgembed_django.queue import jobs
from pgembed_django.queue.work import Work
from pgembed_django.spaces import indexes, reconcile
from tests.app.models import Note, NoteEmbedding
from tests.conftest import wait_until
from tests.db.conftest import Maintenance
from tests.db.test_spaces_parts import NOTE, build, run, texts
from tests.providers import Moody

pytestmark = pytest.mark.django_db


def maintain() -> Maintenance:
    known = {NOTE: specs.get(NOTE)}
    return Maintenance(
        known,
    )


def fill(make_worker) -> Work:
    reconcile.reconcile_once(specs.get(NOTE), using="default")
    worker = make_worker()
    run(worker)
    return worker


@pytest.fixture
def former(swap, make_worker) -> Space:
    """The old model's space. The new one's has just become active."""
    fill(make_worker)
    build()
    assert spaces.active(specs.get(NOTE), using="default") == swap
    return Space.objects.get(spec=NOTE, model="old")


def mend(make_worker) -> None:
    """Do all that is done without the rolling comparison."""
    for _ in range(3):
        maintenance = maintain()  # which does not rest from its last look
        maintenance.upkeep.reconcile()
        maintenance.upkeep.continue_scans()
        maintenance.upkeep.build()
        run(make_worker())


def test_a_row_that_was_emptied_is_a_gap_of_a_reopened_space(former, make_worker):
    note = Note.objects.get(body="trout 0")
    Note.objects.filter(pk=note.pk).update(body="")
    run(make_worker())
    spaces.reopen(former, using="default")
    build()
    former.refresh_from_db()
    assert former.state == Space.State.BUILDING

    mend(make_worker)

    assert spaces.active(specs.get(NOTE), using="default") == former
    stored = NoteEmbedding.objects.filter(space=former, source=note)
    assert list(stored.values_list("passage", flat=True)) == [""]


def test_a_rolled_back_space_that_is_activated_early_is_compared_at_once(former, make_worker):
    Note.objects.filter(body="trout 0").update(body="salmon")
    run(make_worker())
    spaces.reopen(former, using="default")
    assert spaces.activate(former, using="default", is_partial=True)

    mend(make_worker)

    assert "salmon" in texts("old")


def test_an_early_switch_to_a_space_that_lacks_a_write_is_mended_at_once(
    swap,
    make_worker,
):
    fill(make_worker)
    Moody.down = {"new"}
    Note.objects.filter(body="trout 0").update(body="salmon")
    run(make_worker())
    Moody.down = {"old"}
    assert spaces.activate(swap, using="default", is_partial=True)

    mend(make_worker)

    assert "salmon" in texts("new")


def test_rows_that_fail_while_the_indexes_are_built_hold_up_the_switch(
    swap,
    make_worker,
    monkeypatch,
):
    fill(make_worker)

    def take_an_hour(spec: specs.Spec, space: Space, *, using: str) -> int:
        if space != swap or Job.objects.filter(status="failed").exists():
            return 0
        Moody.refusing = {"new": "salmon"}
        Note.objects.update(body="salmon")
        run(make_worker())
        fill(make_worker)
        return 2

    monkeypatch.setattr(indexes, "build", take_an_hour)
    build()

    assert Job.objects.filter(status="failed").count() == 5
    assert spaces.active(specs.get(NOTE), using="default") != swap


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_freezes_in_its_last_look_keeps_no_write_from_the_searched_space(
    swap,
    make_worker,
    monkeypatch,
):
    fill(make_worker)
    frozen, wakes = threading.Event(), threading.Event()

    def freeze(space: Space, *, using: str) -> bool:
        frozen.set()
        assert wakes.wait(60)
        return False

    def look() -> None:
        # As worker.configuring does, but sooner.
        database.execute("default", "SET idle_in_transaction_session_timeout = '1s'")
        with suppress(Error):
            build()
        connections["default"].close()

    monkeypatch.setattr(spaces, "activate", freeze)
    looking = threading.Thread(target=look)
    looking.start()
    assert frozen.wait(30)
    Moody.down = {"new"}
    Note.objects.filter(body="trout 0").update(body="salmon")
    worker = make_worker()

    def is_stored() -> bool:
        worker.step()
        return "salmon" in texts("old")

    wait_until(is_stored)
    wakes.set()
    looking.join()


def test_a_unit_that_waits_for_a_new_space_keeps_what_was_embedded(declare, make_worker):
    Note.objects.create(body="salmon")
    worker = make_worker()
    worker.step()
    declare("new")
    spaces.ensure(specs.get(NOTE), using="default")

    run(worker)

    assert sorted(Moody.asked) == [("new", "salmon"), ("old", "salmon")]
    assert (texts("old"), texts("new")) == ({"salmon"}, {"salmon"})


def test_a_space_that_was_cancelled_before_its_digest_was_known_stays_so(
    declare,
    run_jobs,
    monkeypatch,
):
    def down(self: Moody) -> str:
        raise ProviderUnavailable("no")

    Note.objects.create(body="trout")
    run_jobs()
    declare("new")
    monkeypatch.setattr(Moody, "model_digest", down)
    _, building = spaces.ensure(specs.get(NOTE), using="default")
    assert building.model_digest == ""
    assert spaces.cancel(NOTE, using="default")

    monkeypatch.setattr(Moody, "model_digest", lambda self: "weights")

    assert len(spaces.ensure(specs.get(NOTE), using="default")) == 1


def test_what_a_job_at_a_provider_locks_does_not_let_another_doubtful_one_through(
    transactional_db, make_article, second_connection
):
    """A heartbeat, or text that is stored early, locks it for a moment."""
    make_article()
    make_article()
    Job.objects.update(outages=1)
    keys, lease = ["app.ArticleEmbedding"], jobs.Lease(1, 600)
    [first] = jobs.claim_suspect(keys, lease=lease, using="default")
    held = {"ids": [first.id], "tokens": [first.token], "started_at": [first.started_at]}
    second_connection.execute(jobs.leases.HOLD, held)

    assert jobs.claim_suspect(keys, lease=lease, using="default") == []
    second_connection.rollback()
