"""Every verb of the job table, and the rows that it refuses."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from pgembed_django.models import Job, Worker
from pgembed_django.queue import jobs
from tests.db.conftest import LEASE_SECONDS, expire_leases, make_due, reap
from tests.db.conftest import claim as claim_all

pytestmark = pytest.mark.django_db

SPEC = "shop.ItemEmbedding"
HOUR = datetime.timedelta(hours=1)


@pytest.fixture(autouse=True, params=[None, 0], ids=["anywhere", "in a worker"])
def prepared(request: pytest.FixtureRequest, db: None) -> Iterator[None]:
    """A worker's session keeps prepared statements. Others do not: a pooler may be between."""
    connection.ensure_connection()
    connection.connection.prepare_threshold = request.param
    yield
    if connection.connection is not None:
        connection.connection.prepare_threshold = None


def make_job(source_pk: object = 1, *, spec: str = SPEC, ago: float = 1, **values: Any) -> Job:
    """Make a pending job that was due some seconds ago."""
    run_at = timezone.now() - datetime.timedelta(seconds=ago)
    is_awaited = Job.Kind(values.get("kind", "write")).is_awaited
    given = {"run_at": run_at, "is_awaited": is_awaited, **values}
    return Job.objects.create(spec=spec, source_pk=str(source_pk), **given)


def make_running(source_pk: object = 1, **values: Any) -> jobs.Claim:
    make_job(source_pk, **values)
    [held] = claim()
    return held


def make_failed(source_pk: object = 1, error: str = "no", **values: Any) -> Job:
    held = make_running(source_pk, **values)
    assert jobs.fail(held, error, using="default") == "failed"
    return Job.objects.get(pk=held.id)


def claim(*specs: str, **options: Any) -> list[jobs.Claim]:
    given = {"limit": 100, "lease": jobs.Lease(1, LEASE_SECONDS), "using": "default"}
    return jobs.claim(specs or [SPEC], **{**given, **options})


def claim_suspect(*specs: str) -> list[jobs.Claim]:
    return jobs.claim_suspect(specs or [SPEC], lease=jobs.Lease(1, 60), using="default")


def keys(claims: list[jobs.Claim]) -> list[str]:
    return sorted(claim.source_pk for claim in claims)


def state(job: Job | jobs.Claim) -> tuple[str, int, int]:
    return Job.objects.values_list("status", "attempts", "crashes").get(pk=job.id)


def seconds_until(moment: datetime.datetime | None) -> float:
    assert moment is not None
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        return (moment - cursor.fetchone()[0]).total_seconds()


class TestClaim:
    def test_starts_what_is_due(self):
        job = make_job()
        make_job(2, ago=-60)

        [held] = claim(lease=jobs.Lease(7, LEASE_SECONDS))

        assert (held.id, held.token, held.source_pk) == (job.pk, 1, "1")
        job.refresh_from_db()
        assert (job.status, job.worker_id) == ("running", 7)
        assert LEASE_SECONDS - 5 < seconds_until(job.lease_expires_at) <= LEASE_SECONDS
        assert job.started_at is not None

    def test_counts_each_start(self):
        held = make_running()
        jobs.release(held, using="default")

        [again] = claim()

        assert (again.id, again.token) == (held.id, 2)

    def test_takes_the_highest_lane_first_and_in_it_the_oldest(self):
        make_job("low", priority=-2000, ago=90)
        make_job("young", ago=1)
        make_job("old", ago=60)
        make_job("high", priority=10, ago=1)

        order = [keys(claim(limit=1))[0] for _ in range(4)]

        assert order == ["high", "old", "young", "low"]

    def test_goes_on_with_lower_lanes_where_there_is_room(self):
        for lane in (10, 0, -1000, -2000):
            make_job(f"a {lane}", priority=lane)
            make_job(f"b {lane}", priority=lane)

        assert keys(claim(limit=5)) == ["a -1000", "a 0", "a 10", "b 0", "b 10"]

    def test_can_begin_with_the_lowest_lane(self):
        for lane in (10, 0, -1000):
            make_job(lane, priority=lane)

        assert [keys(claim(limit=1, lowest_first=True))[0] for _ in range(3)] == [
            "-1000",
            "0",
            "10",
        ]

    def test_mixes_the_specs_by_lane_and_age(self):
        make_job("mine", ago=5)
        make_job("other", spec="shop.Other", ago=50)
        make_job("unknown", spec="gone.Gone", ago=500)
        both = (SPEC, "shop.Other")

        order = [keys(claim(*both, limit=1)) for _ in range(3)]

        assert order == [["other"], ["mine"], []]

    def test_never_takes_more_than_the_limit(self):
        for number in range(10):
            make_job(number, priority=number % 3)

        assert len(claim(limit=4)) == 4
        assert Job.objects.filter(status="running").count() == 4
        assert claim(limit=0) == []

    def test_can_take_only_what_was_never_started(self):
        jobs.release(make_running("started"), using="default")
        make_job("new")

        assert keys(claim(only_new=True)) == ["new"]

    def test_passes_over_a_unit_that_is_being_worked_on(self):
        make_running("busy")
        make_job("busy")
        make_job("free")

        assert keys(claim()) == ["free"]

    def test_of_suspects_one_at_a_time_and_by_itself(self):
        make_job("suspect", crashes=1, ago=60)
        make_job("another", crashes=2, ago=30)
        make_job("free")

        assert jobs.is_suspect_due([SPEC], using="default")
        assert keys(claim()) == ["free"]
        assert keys(claim_suspect()) == ["suspect"]
        assert keys(claim_suspect()) == ["another"]
        assert claim_suspect() == []
        assert not jobs.is_suspect_due([SPEC], using="default")

    def test_of_suspects_none_that_is_not_due_known_or_free(self):
        make_job("later", crashes=1, ago=-60)
        make_job("unknown", crashes=1, spec="gone.Gone")
        make_running("busy")
        make_job("busy", crashes=1)

        assert claim_suspect() == []

    def test_without_specs_is_nothing(self):
        make_job()

        assert jobs.claim([], limit=9, lease=jobs.Lease(1, 9), using="default") == []


class TestNextDue:
    def test_is_the_soonest_of_all_lanes_and_specs(self):
        make_job("a", ago=-100)
        make_job("b", priority=-2000, ago=-50)
        make_job("c", spec="shop.Other", ago=-10)
        make_job("unknown", spec="gone.Gone", ago=0)

        assert 45 < jobs.next_due_seconds([SPEC], using="default") <= 50
        assert 5 < jobs.next_due_seconds([SPEC, "shop.Other"], using="default") <= 10

    def test_is_not_above_zero_where_one_is_due(self):
        make_job("a", ago=-100)
        make_job("b", ago=3)

        assert jobs.next_due_seconds([SPEC], using="default") <= 0

    def test_is_none_where_nothing_is_pending(self):
        make_running()

        assert jobs.next_due_seconds([SPEC], using="default") is None


class TestHeartbeat:
    def test_renews_by_the_databases_clock(self):
        held = make_running()
        expire_leases()

        found = jobs.heartbeat([held], lease_seconds=100, using="default")

        assert (found.ours, found.locked, found.lost) == ({held.id}, set(), set())
        assert 95 < seconds_until(Job.objects.get().lease_expires_at) <= 100
        assert reap() == []

    def test_tells_what_is_lost(self):
        held, lost = make_running(1), make_running(2)
        Job.objects.filter(pk=lost.id).delete()

        found = jobs.heartbeat([held, lost], lease_seconds=100, using="default")

        assert (found.ours, found.lost) == ({held.id}, {lost.id})

    def test_of_two_claims_at_one_moment_the_older_is_lost(self):
        """The time alone is no token: the server's clock may have been set back."""
        held = make_running()
        Job.objects.filter(pk=held.id).update(claims=held.token + 1)

        found = jobs.heartbeat([held], lease_seconds=100, using="default")

        assert (found.ours, found.lost) == (set(), {held.id})

    def test_touches_no_index(self):
        """A HOT update: the lease is in none, and pages have room."""
        held = make_running()
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_indexes WHERE tablename = 'pgembed_job' "
                "AND indexdef LIKE '%lease_expires_at%'"
            )
            assert cursor.fetchone() == (0,)
            for _ in range(3):
                jobs.heartbeat([held], lease_seconds=100, using="default")
            cursor.execute("SELECT pg_stat_get_xact_tuples_hot_updated('pgembed_job'::regclass)")
            assert cursor.fetchone()[0] >= 3

    def test_of_nothing_is_nothing(self):
        assert jobs.heartbeat([], lease_seconds=9, using="default") == (set(), set(), set())


class TestComplete:
    def complete(self, held: jobs.Claim, *, chunks: int = 3, keep: float = 60) -> None:
        jobs.complete({held.id: chunks}, keep_seconds=keep, using="default")

    @pytest.mark.parametrize("kind", ["write", "manual_retry"])
    def test_keeps_what_people_and_writes_asked_for(self, kind):
        self.complete(make_running(kind=kind, attempts=1, last_error="no luck"))

        [job] = Job.objects.all()
        assert (job.status, job.worker_id, job.lease_expires_at) == ("succeeded", None, None)
        assert (job.items_done, job.items_total, job.last_error) == (3, 3, "")
        assert job.finished_at is not None

    @pytest.mark.parametrize("kind", ["reconciler", "backfill"])
    def test_deletes_what_nobody_asked_for(self, kind):
        self.complete(make_running(kind=kind))

        assert not Job.objects.exists()

    def test_deletes_everything_where_nothing_is_kept(self):
        self.complete(make_running(), keep=0)

        assert not Job.objects.exists()

    @pytest.mark.parametrize("keep", [0, 60])
    def test_settles_the_units_open_failure_and_no_other(self, keep):
        failure, other = make_failed(1), make_failed(2)

        self.complete(make_running(1), keep=keep)

        assert Job.objects.get(pk=failure.pk).settled_at is not None
        assert Job.objects.get(pk=other.pk).settled_at is None


class TestRetry:
    def retry(self, held: jobs.Claim, *, max_attempts: int = 3, delay: float = 30) -> str:
        return jobs.retry(
            held, "no luck", max_attempts=max_attempts, delay_seconds=delay, using="default"
        )

    def test_spends_an_attempt_and_waits(self):
        held = make_running()

        assert self.retry(held) == "requeued"

        [job] = Job.objects.all()
        assert (job.status, job.attempts, job.crashes) == ("pending", 1, 0)
        assert (job.last_error, job.worker_id, job.lease_expires_at) == ("no luck", None, None)
        assert 25 < seconds_until(job.run_at) <= 30
        assert claim() == []

    def test_fails_with_the_last_attempt(self):
        held = make_running(attempts=2)

        assert self.retry(held) == "failed"

        assert state(held) == ("failed", 3, 0)
        assert Job.objects.get().last_error == "no luck"

    def test_is_superseded_by_a_newer_job(self):
        held = make_running()
        newer = make_job()

        assert self.retry(held) == "superseded"

        assert list(Job.objects.all()) == [newer]


class TestRelease:
    def test_spends_nothing(self):
        held = make_running(attempts=1)

        assert jobs.release(held, using="default") == "requeued"

        assert state(held) == ("pending", 1, 0)
        assert keys(claim()) == ["1"]

    def test_can_wait_and_say_why(self):
        held = make_running()

        jobs.release(held, delay_seconds=60, reason="The server is down.", using="default")

        [job] = Job.objects.all()
        assert job.last_error == "The server is down."
        assert 55 < seconds_until(job.run_at) <= 60

    def test_keeps_the_reason_that_was_there(self):
        held = make_running(last_error="no luck", attempts=1)

        jobs.release(held, using="default")

        assert Job.objects.get().last_error == "no luck"

    def test_is_superseded_by_a_newer_job(self):
        held = make_running()
        newer = make_job()

        assert jobs.release(held, using="default") == "superseded"
        assert list(Job.objects.all()) == [newer]

    def test_of_what_is_lost_changes_nothing(self):
        held = make_running()
        jobs.release(held, using="default")

        assert jobs.release(held, using="default") == "lost"
        assert state(held) == ("pending", 0, 0)


class TestFail:
    def test_leaves_an_open_failure_that_is_parked(self):
        job = make_failed()

        assert state(job) == ("failed", 1, 0)
        assert (job.last_error, job.settled_at, job.worker_id) == ("no", None, None)
        assert job.finished_at is not None
        assert 3595 < seconds_until(job.run_at) <= 3600

    def test_parks_for_longer_and_longer_and_lists_the_unit_once(self):
        hours = []
        for _ in range(10):
            make_failed()
            [job] = Job.objects.filter(settled_at=None)
            hours.append(round(seconds_until(job.run_at) / 3600))

        assert hours[:4] == [1, 2, 4, 8]
        assert hours[-1] == 7 * 24  # and never longer

    def test_is_superseded_by_newer_work(self):
        held = make_running()
        newer = make_job()

        assert jobs.fail(held, "no", using="default") == "superseded"
        assert list(Job.objects.all()) == [newer]

    def test_of_what_is_lost_changes_nothing(self):
        held = make_running()
        jobs.release(held, using="default")

        assert jobs.fail(held, "no", using="default") == "lost"
        assert state(held) == ("pending", 0, 0)

    @pytest.mark.parametrize(
        ("error", "stored"),
        [("", "unknown error"), ("  \x00 ", "unknown error"), ("a\x00b", "ab")],
    )
    def test_stores_an_error_that_can_be_stored(self, error, stored):
        assert make_failed(error=error).last_error == stored

    def test_stores_no_endless_error(self):
        assert len(make_failed(error="x" * 100_000).last_error) == 2000


class TestReap:
    def test_takes_back_what_ran_out_and_counts_a_crash(self):
        held = make_running()
        expire_leases()

        [(reaped, result)] = jobs.reap(max_crashes=3, using="default")

        assert (reaped, result) == (held, "requeued")
        assert state(held) == ("pending", 0, 1)
        assert Job.objects.get().last_error == "worker lost"

    def test_leaves_the_asking_workers_own_for_another_lease(self):
        """It runs, so it renews them: its machine may have slept."""
        held = make_running()
        expire_leases()
        worker_id = Job.objects.get(pk=held.id).worker_id

        long, short = jobs.Lease(worker_id, 600), jobs.Lease(worker_id, 0.5)
        assert jobs.reap(max_crashes=3, using="default", own=long) == []
        assert jobs.reap(max_crashes=3, using="default", own=short) == [(held, "requeued")]

    def test_leaves_what_is_held(self):
        held = make_running()

        assert reap() == []
        assert state(held) == ("running", 0, 0)

    def test_fails_with_the_last_crash(self):
        held = make_running()
        for _ in range(2):
            expire_leases()
            assert reap() == ["requeued"]
            make_due()
            claim_suspect()
        expire_leases()

        assert reap() == ["failed"]

        assert state(held) == ("failed", 0, 3)
        assert Job.objects.get().last_error == "worker lost"

    def test_is_superseded_by_newer_work(self):
        make_running()
        newer = make_job()
        expire_leases()

        assert reap() == ["superseded"]
        assert list(Job.objects.all()) == [newer]

    def test_takes_a_bounded_number_at_once(self):
        for number in range(5):
            make_running(number)
        expire_leases()

        assert len(jobs.reap(max_crashes=3, using="default", limit=3)) == 3


class TestEnqueue:
    def enqueue(self, *source_pks: str, kind: str = "reconciler", priority: int = 0) -> int:
        return jobs.enqueue(SPEC, source_pks, kind=kind, priority=priority, using="default")

    def test_adds_what_is_not_there(self):
        make_job("a")

        assert self.enqueue("a", "b", "c") == 2

        assert Job.objects.count() == 3
        assert Job.objects.filter(kind="reconciler", priority=-1000).count() == 2

    def test_adds_beside_what_runs_has_failed_or_succeeded(self):
        make_failed("failed")
        make_running("running")

        assert self.enqueue("failed", "running") == 2

    @pytest.mark.parametrize(
        ("kind", "lane"),
        [("write", 5), ("manual_retry", 5), ("reconciler", -995), ("backfill", -1995)],
    )
    def test_puts_each_kind_into_its_lane_the_specs_priority_added(self, kind, lane):
        self.enqueue("a", kind=kind, priority=5)

        assert Job.objects.get().priority == lane

    def test_of_nothing_is_nothing(self):
        assert self.enqueue() == 0


class TestRetryFailed:
    def test_starts_afresh(self):
        job = make_failed(attempts=4)

        assert jobs.retry_failed([job.pk], using="default") == {"retried": 1}

        assert Job.objects.get(pk=job.pk).settled_at is not None
        [again] = Job.objects.filter(status="pending")
        assert (again.kind, again.attempts, again.priority) == ("manual_retry", 0, 0)
        assert keys(claim()) == ["1"]

    def test_brings_a_pending_job_forward(self):
        job = make_failed()
        pending = make_job(ago=-9999, priority=-2000, attempts=2, crashes=1)

        assert jobs.retry_failed([job.pk], using="default")["superseded"] == 1

        pending.refresh_from_db()
        assert (pending.priority, pending.attempts, pending.crashes) == (0, 0, 0)
        assert seconds_until(pending.run_at) <= 0

    def test_of_what_is_settled_or_gone_says_so(self):
        job = make_failed()
        Job.objects.update(settled_at=timezone.now())

        assert jobs.retry_failed([job.pk, 999_999], using="default") == {"gone": 2}
        assert not Job.objects.filter(status="pending").exists()

    def test_starts_what_was_dismissed_too(self):
        job = make_failed()
        jobs.dismiss([job.pk], using="default")

        assert jobs.retry_failed([job.pk], using="default") == {"retried": 1}
        assert keys(claim()) == ["1"]

    def test_brings_one_forward_that_waits_for_its_next_attempt(self):
        held = make_running()
        jobs.retry(held, "no", max_attempts=5, delay_seconds=600, using="default")

        assert jobs.retry_failed([held.id], using="default") == {"forward": 1}
        assert keys(claim()) == ["1"]

    def test_ends_the_parking_that_had_grown(self):
        make_failed()
        job = make_failed()
        assert job.parkings == 1
        jobs.retry_failed([job.pk], using="default")
        [held] = claim()

        jobs.fail(held, "no", using="default")

        assert Job.objects.get(pk=held.id).parkings == 0


class TestDismiss:
    def test_puts_open_failures_aside_and_nothing_else(self):
        failed, other = make_failed(1), make_failed(2)
        pending = make_job(3)

        assert jobs.dismiss([failed.pk, pending.pk], using="default") == {"dismissed": 1, "gone": 1}
        assert jobs.dismiss([failed.pk], using="default") == {"gone": 1}

        assert state(failed) == ("dismissed", 1, 0)
        assert state(other) == ("failed", 1, 0)
        assert state(pending) == ("pending", 0, 0)

    def test_parks_the_unit_for_as_long_as_any(self):
        job = make_failed()
        jobs.dismiss([job.pk], using="default")

        job.refresh_from_db()
        assert round(seconds_until(job.run_at) / 86_400) == 7

    @pytest.mark.parametrize("ending", ["succeeds", "fails again"])
    def test_lasts_until_the_unit_has_a_newer_outcome(self, ending):
        job = make_failed()
        jobs.dismiss([job.pk], using="default")
        held = make_running()

        if ending == "succeeds":
            jobs.complete({held.id: 1}, keep_seconds=60, using="default")
        else:
            assert jobs.fail(held, "no", using="default") == "failed"

        assert Job.objects.get(pk=job.pk).settled_at is not None


class TestPrune:
    def test_deletes_what_is_finished_and_old_but_no_open_failure(self):
        done = make_running("done")
        jobs.complete({done.id: 1}, keep_seconds=60, using="default")
        settled, unsettled = make_failed("settled"), make_failed("open")
        Job.objects.filter(pk=settled.pk).update(settled_at=timezone.now())
        Job.objects.update(finished_at=timezone.now() - HOUR)
        young = make_running("young")
        jobs.complete({young.id: 1}, keep_seconds=60, using="default")
        make_running("running")
        make_job("pending")

        assert jobs.prune(keep_seconds=1800, using="default") == 2

        left = Job.objects.values_list("source_pk", flat=True)
        assert sorted(left) == ["open", "pending", "running", "young"]
        assert Job.objects.get(pk=unsettled.pk).status == "failed"

    @pytest.mark.parametrize("off", [(), ("hashagg", "hashjoin", "material", "mergejoin", "sort")])
    def test_deletes_a_bounded_number_whatever_the_plan(self, off):
        for way in off:
            connection.cursor().execute(f"SET LOCAL enable_{way} = off")
        for number in range(5):
            done = make_running(number)
            jobs.complete({done.id: 1}, keep_seconds=60, using="default")

        assert jobs.prune(keep_seconds=0, using="default", limit=3) == 3
        assert Job.objects.count() == 2


class TestFailUnknown:
    def make_old(self, source_pk: object = 1, spec: str = "gone.Gone") -> Job:
        return make_job(source_pk, spec=spec, created_at=timezone.now() - 2 * HOUR)

    def test_fails_what_nobody_knows(self):
        job = self.make_old()
        known = self.make_old(spec=SPEC)

        assert jobs.fail_unknown([SPEC], using="default") == 1

        job.refresh_from_db()
        assert (job.status, job.settled_at) == ("failed", None)
        assert "gone.Gone" in job.last_error
        assert state(known) == ("pending", 0, 0)

    def test_leaves_what_is_young_or_known_to_a_live_worker(self):
        make_job(spec="gone.Gone")
        self.make_old(spec="new.New")
        Worker.objects.create(host="h", pid=1, version="1", specs=["new.New"])

        assert jobs.fail_unknown([SPEC], using="default") == 0

    def test_lists_a_unit_once_that_had_failed_before(self):
        older = make_failed(1)
        Job.objects.update(spec="gone.Gone")
        job, other = self.make_old(1), self.make_old(2)

        assert jobs.fail_unknown([SPEC], using="default") == 2

        open_failures = Job.objects.filter(status="failed", settled_at=None)
        assert set(open_failures) == {older, other}
        assert Job.objects.get(pk=job.pk).settled_at is not None


def test_workers_that_have_not_been_heard_of_are_forgotten():
    silent = Worker.objects.create(host="h", pid=1, version="1")
    Worker.objects.update(last_seen_at=timezone.now() - HOUR)
    live = Worker.objects.create(host="h", pid=2, version="1")

    assert jobs.forget_dead_workers(silent_seconds=1800, using="default") == 1

    assert list(Worker.objects.all()) == [live]
    assert silent.pk != live.pk


RUNNING = {"status": "running", "worker_id": 1, "lease_expires_at": timezone.now()}
DONE = {"status": "succeeded", "finished_at": timezone.now()}
FAILED = {"status": "failed", "finished_at": timezone.now(), "last_error": "no"}


@pytest.mark.parametrize("row", [{}, RUNNING, DONE, FAILED], ids=["pending", "r", "s", "f"])
def test_possible_rows_are_taken(row):
    make_job(**row)


@pytest.mark.parametrize("row", [{}, RUNNING, FAILED], ids=["pending", "running", "open failure"])
def test_a_unit_has_one_of_each(row):
    make_job(**row)

    with pytest.raises(IntegrityError, match="pgembed_one_"), transaction.atomic():
        make_job(**row)
    make_job(2, **row)
    make_job(spec="shop.Other", **row)


@pytest.mark.parametrize(
    ("rule", "row"),
    [
        ("status_known", {"status": "lost"}),
        ("running_has_worker_and_lease", {**RUNNING, "worker_id": None}),
        ("running_has_worker_and_lease", {**RUNNING, "lease_expires_at": None}),
        ("running_has_worker_and_lease", {"worker_id": 1}),
        ("running_has_worker_and_lease", {**DONE, "lease_expires_at": timezone.now()}),
        ("finished_has_time", {**DONE, "finished_at": None}),
        ("finished_has_time", {**FAILED, "finished_at": None}),
        ("finished_has_time", {"finished_at": timezone.now()}),
        ("failed_has_error", {**FAILED, "last_error": ""}),
        ("only_failures_settle", {"settled_at": timezone.now()}),
        ("only_failures_settle", {**DONE, "settled_at": timezone.now()}),
        ("counts_are_counts", {"attempts": -1}),
        ("counts_are_counts", {"crashes": -1}),
        ("counts_are_counts", {"claims": -1}),
        ("counts_are_counts", {"parkings": -1}),
        ("counts_are_counts", {"items_done": -1}),
    ],
)
def test_impossible_rows_are_refused(rule, row):
    with pytest.raises(IntegrityError, match=f"pgembed_job_{rule}"), transaction.atomic():
        make_job(**row)


def test_everything_that_is_claimed_is_of_a_spec_with_jobs():
    make_job(spec="a.A")
    make_job(spec="b.B")

    assert {held.spec for held in claim_all()} == {"a.A", "b.B"}
