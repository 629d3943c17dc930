"""I10: what went past the triggers is found, in bounded steps and behind the writes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import Q
from django.db.models.signals import post_save
from django.test.utils import CaptureQueriesContext

from pgembed_django import spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Job, ScanCursor
from pgembed_django.spaces import reconcile
from tests.app.models import Note, NoteEmbedding, Product
from tests.conftest import wait_until
from tests.db.conftest import Maintenance, make_due

pytestmark = pytest.mark.django_db

KEY = "app.NoteEmbedding"


def spec(key: str = KEY) -> specs.Spec:
    return specs.get(key)


def find_gaps(**options) -> int:
    spaces.ensure(spec(), using="default")
    return reconcile.reconcile_once(spec(), using="default", **options)


def stored() -> dict:
    rows = NoteEmbedding.objects.filter(embedding__isnull=False)
    return {str(row.source_id): row.passage for row in rows}


def past_the_triggers(statement: str, *parameters: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(statement, parameters)
        cursor.execute("RESET session_replication_role")


def add_old_notes(count: int) -> None:
    past_the_triggers(
        "INSERT INTO app_note (id, body, seen) "
        "SELECT gen_random_uuid(), 'old', 0 FROM generate_series(1, %s)",
        count,
    )


def test_one_reconcile_mends_all_that_went_past_the_triggers(run_jobs):
    changed, robbed, gone = (Note.objects.create(body=text) for text in ("old", "kept", "gone"))
    run_jobs()
    past_the_triggers("UPDATE app_note SET body = 'new' WHERE id = %s", changed.pk)
    NoteEmbedding.objects.filter(source=robbed).delete()
    past_the_triggers("DELETE FROM app_note WHERE id = %s", gone.pk)
    restored = "00000000-0000-0000-0000-000000000007"
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        with cursor.copy("COPY app_note (id, body, seen) FROM STDIN") as copy:
            copy.write_row([restored, "restored", 0])
        cursor.execute("RESET session_replication_role")
    assert not Job.objects.filter(status="pending").exists()

    assert find_gaps(scans=reconcile.ALL_SCANS) == 4
    run_jobs()

    assert stored() == {str(changed.pk): "new", str(robbed.pk): "kept", restored: "restored"}
    assert find_gaps(scans=reconcile.ALL_SCANS) == 0


def test_rows_from_before_the_decorator_need_no_command(run_jobs):
    add_old_notes(9)
    spaces.ensure(spec(), using="default")
    maintenance = Maintenance(
        {KEY: spec()},
    )

    assert maintenance.once() == 9
    run_jobs()

    assert list(stored().values()) == ["old"] * 9


def test_a_unit_that_keeps_failing_is_parked_for_longer_and_longer(run_jobs, provider):
    note = Note.objects.create(body="poison")
    run_jobs()
    parked = []
    for _ in range(3):
        [failure] = Job.objects.filter(status="failed", settled_at=None)
        parked.append(failure.run_at - failure.finished_at)
        assert find_gaps(scans=reconcile.ALL_SCANS) == 0
        make_due()
        assert find_gaps(scans=reconcile.ALL_SCANS) == 1
        run_jobs()

    assert parked == [timedelta(hours=1), timedelta(hours=2), timedelta(hours=4)]
    # It stays visible, once; and a write overrides the parking.
    assert Job.objects.filter(status="failed", settled_at=None).count() == 1
    note.body = "sound"
    note.save()
    run_jobs()
    assert stored() == {str(note.pk): "sound"}
    assert not Job.objects.filter(status="failed", settled_at=None).exists()


def test_a_failure_of_a_model_that_was_cancelled_is_settled(run_jobs, settings):
    note = Note.objects.create(body="poison")
    run_jobs()
    declared = settings.PGEMBED_PROVIDERS
    settings.PGEMBED_PROVIDERS = {
        "default": {**declared["default"], "BACKEND": "tests.played.provider.PlayedProvider"}
    }
    find_gaps()
    run_jobs()
    assert Job.objects.get(status="failed").settled_at is None
    settings.PGEMBED_PROVIDERS = declared
    spaces.cancel(KEY, using="default")

    assert find_gaps() == 0
    make_due()
    assert find_gaps() == 1
    assert find_gaps() == 0
    embedded = NoteEmbedding.objects.get(source=note).created_at
    run_jobs()

    assert NoteEmbedding.objects.get(source=note).created_at == embedded
    assert not Job.objects.filter(status="failed", settled_at=None).exists()


def test_a_stale_row_that_keeps_failing_stays_parked_too(run_jobs, provider):
    note = Note.objects.create(body="good")
    run_jobs()
    note.body = "poison"
    note.save()
    run_jobs()

    assert find_gaps(scans=reconcile.ALL_SCANS) == 0
    assert stored() == {str(note.pk): "good"}
    make_due()
    assert find_gaps(scans=reconcile.ALL_SCANS) == 1


def test_a_row_whose_text_cannot_be_made_does_not_end_the_scan(run_jobs, monkeypatch):
    good, bad = Product.objects.create(title="good"), Product.objects.create(title="bad")
    run_jobs()
    past_the_triggers("UPDATE app_product SET price = 7")
    pitch = Product.pitch
    monkeypatch.setattr(Product, "pitch", lambda row: 1 / 0 if row.pk == bad.pk else pitch(row))
    product = spec("app.ProductEmbedding")

    found, _ = reconcile.stale(
        product,
        spaces.live(product, using="default"),
        Q(),
        using="default",
    )

    assert found == [str(good.pk)]


def test_texts_that_take_long_to_make_keep_no_migration_waiting_for_all_of_them(
    run_jobs, monkeypatch
):
    products = [Product.objects.create(title=f"product {number}") for number in range(4)]
    run_jobs()
    past_the_triggers("UPDATE app_product SET price = 7")
    Job.objects.all().delete()
    monkeypatch.setattr(reconcile, "TEXTS_SECONDS", 0.0)  # every text takes that long
    product = spec("app.ProductEmbedding")

    page = reconcile.reconcile_page(product, ScanCursor.Scan.STALE, using="default")

    assert (page.enqueued, page.is_last) == (1, False)
    assert ScanCursor.objects.get(spec=product.key, scan="stale").cursor == str(products[0].pk)
    maintenance = Maintenance({product.key: product})
    assert [maintenance.upkeep.look_for_stale_rows() for _ in range(3)] == [1, 1, 1]
    assert ScanCursor.objects.get(spec=product.key, scan="stale").cursor is None


def test_specs_are_compared_one_at_a_time_as_saved_rows_wait_meanwhile(run_jobs):
    note = Note.objects.create(body="a note")
    product = Product.objects.create(title="a product")
    run_jobs()
    Job.objects.all().delete()
    past_the_triggers("UPDATE app_note SET body = 'new'")
    past_the_triggers("UPDATE app_product SET price = 7")
    compared = {key: spec(key) for key in ("app.NoteEmbedding", "app.ProductEmbedding")}
    maintenance = Maintenance(
        compared,
    )

    found = []
    for _ in compared:
        assert maintenance.upkeep.look_for_stale_rows() == 1
        found.append(list(Job.objects.order_by("pk").values_list("source_pk", flat=True)))

    assert found == [[str(note.pk)], [str(note.pk), str(product.pk)]]


@pytest.mark.django_db(transaction=True)  # the other one has a connection
def test_two_reconcilers_take_turns_and_do_nothing_twice(second_connection, monkeypatch):
    monkeypatch.setattr(reconcile, "PAGE_ROWS", 3)
    add_old_notes(8)
    spaces.ensure(spec(), using="default")

    def page():
        return reconcile.reconcile_page(spec(), ScanCursor.Scan.MISSING, using="default")

    first = page()
    second_connection.execute(
        "SELECT FROM pgembed_scancursor FOR UPDATE"
    )  # it is at the second page
    with CaptureQueriesContext(connection) as seen:
        beside = page()
    second_connection.rollback()
    rest = [page(), page()]

    assert first == (3, False)
    assert beside is None
    assert not any("app_note" in query["sql"] for query in seen)
    assert rest == [(3, False), (2, True)]
    assert Job.objects.filter(spec=KEY).count() == 8


def test_the_backlog_is_bounded_and_filled_again(run_jobs, monkeypatch):
    monkeypatch.setattr(reconcile, "MAX_BACKLOG", 5)
    add_old_notes(12)

    counts = []
    for _ in range(4):
        counts.append(find_gaps(scans=[ScanCursor.Scan.MISSING]))
        assert Job.objects.filter(status="pending").count() <= 5
        assert find_gaps(scans=[ScanCursor.Scan.MISSING]) == 0
        run_jobs()

    assert sum(counts) == 12
    assert max(counts) == 5
    assert len(stored()) == 12


def test_no_page_is_looked_for_before_there_is_room_for_it(run_jobs, monkeypatch):
    monkeypatch.setattr(reconcile, "MAX_BACKLOG", 5)
    monkeypatch.setattr(reconcile, "PAGE_ROWS", 3)
    add_old_notes(9)
    assert find_gaps(scans=[ScanCursor.Scan.MISSING]) == 3

    Job.objects.filter(pk__in=Job.objects.values("pk")[:1]).delete()  # a worker has done one
    assert find_gaps(scans=[ScanCursor.Scan.MISSING]) == 3
    Job.objects.filter(pk__in=Job.objects.values("pk")[:2]).delete()
    assert find_gaps(scans=[ScanCursor.Scan.MISSING]) == 0
    run_jobs()
    assert find_gaps(scans=[ScanCursor.Scan.MISSING]) == 3


def test_the_lowest_lane_gets_its_share_while_writes_never_stop(make_worker):
    add_old_notes(1)
    assert find_gaps() == 1
    worker = make_worker(claim_limit=1, batch_size=1, concurrency=1)

    rounds = 0
    while "old" not in stored().values() and rounds < 40:
        rounds += 1
        Note.objects.bulk_create([Note(body="new"), Note(body="new")])  # more than it can do
        worker.step()

    assert "old" in stored().values()
    assert 2 < rounds <= 20
    assert Job.objects.filter(status="pending", kind="write").exists()
    worker.release()


def test_a_scan_without_gaps_goes_on_later_where_it_was(run_jobs, monkeypatch):
    Note.objects.bulk_create(Note(body=f"body {number}") for number in range(6))
    run_jobs()
    last = Note.objects.order_by("pk").last()
    NoteEmbedding.objects.filter(source=last).delete()
    monkeypatch.setattr(reconcile, "PAGE_ROWS", 2)

    assert find_gaps(quiet_seconds=0) == 0

    assert reconcile.under_way([spec()], using="default").get(spec(), []) == ["missing", "orphaned"]
    found = []
    while scans := reconcile.under_way([spec()], using="default").get(spec(), []):
        found.append(find_gaps(scans=scans, quiet_seconds=0))
    assert sum(found) == 1
    assert len(found) <= 3
    assert Job.objects.get(status="pending").source_pk == str(last.pk)


def test_a_scan_that_finds_gaps_goes_on_at_once(monkeypatch):
    add_old_notes(6)
    monkeypatch.setattr(reconcile, "PAGE_ROWS", 2)

    assert find_gaps(quiet_seconds=0) == 6


def test_a_receiver_of_all_that_is_saved_does_not_end_a_scan():
    def audit(**_: Any) -> None:
        raise ValueError("no user is logged in")

    post_save.connect(audit)
    try:
        add_old_notes(1)
        assert find_gaps() == 1
        assert find_gaps() == 0
    finally:
        post_save.disconnect(audit)


@pytest.mark.django_db(transaction=True)  # scans are made in a thread
def test_a_workers_scan_takes_turns_with_its_work(run_jobs, monkeypatch):
    Note.objects.bulk_create(Note(body=f"body {number}") for number in range(6))
    run_jobs()
    monkeypatch.setattr(reconcile, "PAGE_ROWS", 1)
    monkeypatch.setattr("pgembed_django.spaces.upkeep.QUIET_SECONDS", 0)
    keeping = Maintenance(
        {KEY: spec()},
    )

    keeping.start()
    wait_until(lambda: ScanCursor.objects.filter(scan="orphaned", cursor__isnull=False).exists())
    keeping.stop()

    assert ScanCursor.objects.filter(cursor__isnull=False).count() == 2


def test_a_drain_looks_through_whole_tables(monkeypatch, run_jobs):
    """It has nobody to take turns with, so it does not stop at pages without a gap."""
    monkeypatch.setattr("pgembed_django.spaces.upkeep.QUIET_SECONDS", 0)
    monkeypatch.setattr(reconcile, "PAGE_ROWS", 1)
    draining = Maintenance({KEY: spec()})
    for number in range(3):
        Note.objects.create(body=f"note {number}")
    run_jobs()
    NoteEmbedding.objects.filter(source=Note.objects.latest("pk")).delete()

    assert draining.once() == 1


def test_jobs_of_a_removed_spec_are_settled_and_shown():
    for source_pk, status in (("1", "pending"), ("2", "failed"), ("2", "pending")):
        job = Job(spec="app.Removed", source_pk=source_pk, status=status)
        if status == "failed":
            job.finished_at, job.last_error = "2020-01-01T00:00Z", "bad"
        job.save()
    Job.objects.create(spec="app.Removed", source_pk="3")
    Job.objects.exclude(source_pk="3").update(created_at="2020-01-01T00:00Z")
    Job.objects.create(spec=KEY, source_pk="4")
    Job.objects.filter(spec=KEY).update(created_at="2020-01-01T00:00Z")
    # A worker that works on something else only.
    maintenance = Maintenance(
        {},
    )

    maintenance.reconcile()

    shown = Job.objects.filter(status="failed", settled_at=None).order_by("source_pk")
    assert [job.source_pk for job in shown] == ["1", "2"]
    assert shown[0].last_error == (
        "No spec named app.Removed: its model or its @embeddable is gone."
    )
    # During a deploy another worker may know it; and what is known is left alone.
    pending = Job.objects.filter(status="pending").values_list("spec", "source_pk")
    assert set(pending) == {("app.Removed", "3"), (KEY, "4")}


def test_whether_scans_are_to_go_on_is_one_question_about_all_specs():
    """It is asked every second, and a project may have a hundred of them."""
    known = {one.key: one for one in specs.all()}
    maintenance = Maintenance(
        known,
    )
    with CaptureQueriesContext(connection) as captured:
        maintenance.upkeep.continue_scans()

    assert len(known) > 1
    assert len(captured) == 1
