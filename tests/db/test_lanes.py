"""A claim that goes on where the last one has ended, and what it would pass over."""

from __future__ import annotations

import pytest
from django.db import connection

from pgembed_django.core import database
from pgembed_django.models import Job
from pgembed_django.queue import jobs
from pgembed_django.queue.jobs import Claim, Lane
from pgembed_django.queue.lanes import ANEW_SECONDS, LOWEST_LANE_EVERY
from tests.app.models import Note
from tests.db.conftest import LEASE_SECONDS

SPEC = "shop.ItemEmbedding"
LEASE = jobs.Lease(1, LEASE_SECONDS)
READ = """
    SELECT sum(pg_stat_get_xact_tuples_returned(oid))
    FROM pg_class
    WHERE oid = 'pgembed_job_ready'::regclass
"""

INSERT_LATE = "INSERT INTO app_note (id, body, seen) VALUES (gen_random_uuid(), 'late', 0)"


def make_jobs(*source_pks: str, priority: int = 0) -> None:
    """Make jobs that have been due at the same time, as those of one statement are."""
    Job.objects.bulk_create(
        Job(spec=SPEC, source_pk=one, priority=priority, run_at="2020-01-01T00:00Z")
        for one in source_pks
    )


def claim(limit: int) -> list[Claim]:
    return jobs.claim([SPEC], limit=limit, lease=LEASE, using="default")


def claim_on(*lanes: Lane, limit: int = 100) -> list[Claim]:
    return jobs.claim([SPEC], lanes=lanes, limit=limit, lease=LEASE, using="default")


def end_of(claims: list[Claim]) -> Lane:
    last = claims[-1]
    return Lane(last.spec, last.priority, last.run_at, last.id)


def keys(claims: list[Claim]) -> list[str]:
    return [claim.source_pk for claim in claims]


@pytest.mark.django_db
class TestClaimOn:
    def test_begins_after_the_last_one_that_was_claimed(self):
        make_jobs("a", "b", "c", "d")
        first = claim(2)
        jobs.release(first[0], using="default")
        Job.objects.filter(source_pk="a").update(run_at="2020-01-01T00:00Z")

        assert keys(claim_on(end_of(first))) == ["c", "d"]
        assert keys(claim(9)) == ["a"]

    def test_begins_at_the_heads_of_other_lanes_the_highest_first(self):
        make_jobs("a", "b")
        lane = end_of(claim(1))
        make_jobs("low", priority=-2000)
        make_jobs("high", priority=10)

        found = claim_on(Lane(SPEC, -2000), lane, Lane(SPEC, 10), Lane(SPEC, -1000), limit=2)

        assert keys(found) == ["high", "b"]

    def test_takes_nothing_of_lanes_that_are_not_given(self):
        make_jobs("a", priority=7)

        assert claim_on(Lane(SPEC, 0), Lane("shop.Other", 7)) == []
        assert claim_on() == []

    def test_does_not_read_over_what_is_done(self):
        make_jobs(*map(str, range(1000)))
        lane = end_of(claim(900))
        with connection.cursor() as cursor:
            cursor.execute(database.BY_KEPT_PLANS)  # as for a worker's claim

        before = entries_read()
        assert len(claim_on(lane, limit=10)) == 10
        went_on = entries_read() - before
        assert len(claim(10)) == 10
        began_anew = entries_read() - before - went_on

        assert went_on <= 3 * 10
        # Once: a heads' claim looks for its lanes and their heads in one walk.
        assert 900 <= began_anew < 2 * 900


def entries_read() -> int:
    with connection.cursor() as cursor:
        cursor.execute(READ)
        [count] = cursor.fetchone()
        return int(count)


def bodies_of(claims: list[Claim]) -> list[str]:
    bodies = {str(pk): body for pk, body in Note.objects.values_list("pk", "body")}
    return [bodies[claim.source_pk] for claim in claims]


@pytest.mark.django_db(transaction=True)
class TestWorker:
    def test_finds_what_was_committed_late_while_there_is_more(self, make_worker, connect, clock):
        worker = make_worker()
        with connect() as late:
            late.execute(INSERT_LATE)
            Note.objects.bulk_create(Note(body="on time") for _ in range(20))
            assert bodies_of(worker.claiming.up_to(2)) == ["on time"] * 2
            late.commit()

        went_on = bodies_of(worker.claiming.up_to(2))
        clock.now += ANEW_SECONDS
        began_anew = bodies_of(worker.claiming.up_to(2))

        assert went_on == ["on time"] * 2
        assert began_anew == ["late", "on time"]

    def test_begins_with_the_lowest_lane_now_and_then_while_there_is_more(self, make_worker):
        worker = make_worker()
        Note.objects.bulk_create(Note(body="filled") for _ in range(2))
        Job.objects.update(kind="backfill", priority=-2000)
        Note.objects.bulk_create(Note(body="saved") for _ in range(2 * LOWEST_LANE_EVERY))

        claimed = [bodies_of(worker.claiming.up_to(2)) for _ in range(LOWEST_LANE_EVERY)]

        assert claimed.count(["saved"] * 2) == LOWEST_LANE_EVERY - 1
        assert ["filled"] * 2 in claimed

    def test_takes_a_higher_lane_first_at_once(self, make_worker):
        worker = make_worker()
        Note.objects.bulk_create(Note(body="filled") for _ in range(9))
        Job.objects.update(kind="backfill", priority=-2000)
        assert len(worker.claiming.up_to(2)) == 2
        Note.objects.create(body="saved")

        assert bodies_of(worker.claiming.up_to(2))[0] == "saved"

    def test_finds_lanes_that_no_code_of_now_makes(self, make_worker):
        worker = make_worker()
        Note.objects.bulk_create(Note(body="new") for _ in range(4))
        Note.objects.create(body="odd")
        Job.objects.filter(source_pk=str(Note.objects.get(body="odd").pk)).update(priority=-7)

        claimed = [bodies_of(worker.claiming.up_to(2)) for _ in range(3)]

        assert claimed == [["new", "new"], ["new", "new"], ["odd"]]
