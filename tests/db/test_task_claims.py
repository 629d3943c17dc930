"""Which tasks a claim starts: whose turn it is, and what is kept from running."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from pgembed_django import conf
from pgembed_django.exceptions import InputRefused, ProviderLost, ProviderUnavailable
from pgembed_django.models import Pause, Task, TaskRate
from pgembed_django.queue import jobs
from pgembed_django.queue.jobs import Claim
from pgembed_django.queue.lanes import ANEW_SECONDS, LOWEST_LANE_EVERY
from pgembed_django.queue.work import Work
from pgembed_django.tasks import api, limits, turns
from pgembed_django.tasks.handler import TaskHandler
from pgembed_django.tasks.table import TASKS
from pgembed_django.tasks.turns import Lane
from tests.app import tasks
from tests.db.conftest import LEASE_SECONDS, until_waiting

LEASE = jobs.Lease(1, LEASE_SECONDS)
QUEUE = "default"

Make = Callable[..., Work]


@pytest.fixture
def make_tasker(clock: Any) -> Make:
    """Make workers that run tasks only when told."""

    def make(*queues: str, places: int = 100) -> Work:
        handler = TaskHandler(queues or [QUEUE], using="default", concurrency=places)
        settings = conf.current()
        return Work(
            handler, using="default", worker_id=1, settings=settings, inline=True, clock=clock
        )

    return make


def make_tasks(count: int = 1, **values: Any) -> list[Task]:
    """Make tasks that have been due for a while, each a millisecond longer than the next."""
    given = {"queue": QUEUE, "function": "tests.app.tasks.note", "unit": "", **values}
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp() - interval '1 minute'")
        [since] = cursor.fetchone()
    return Task.objects.bulk_create(
        Task(**{"run_at": since, "created_at": since, **given}) for _ in range(count)
    )


def tenants(claims: list[Claim]) -> list[str]:
    found = dict(Task.objects.values_list("pk", "tenant"))
    return [found[claim.id] for claim in claims]


def serials(claims: list[Claim]) -> list[str | None]:
    found = dict(Task.objects.values_list("pk", "serial"))
    return sorted(found[claim.id] for claim in claims)


def functions(claims: list[Claim]) -> list[str]:
    return [claim.kind for claim in claims]


def start(*, is_serial: bool = True, priority: int = 0, most: int = 1) -> list[Claim]:
    """Start tasks of a lane, of the tenants that wait."""
    lane = Lane(QUEUE, priority, is_serial)
    waiting = turns.tenants(lane, served="", most=100, using="default")
    given = [turns.Turn(tenant, most) for tenant in waiting]
    return [one.claim for one in turns.start(lane, given, lease=LEASE, using="default")]


@pytest.mark.django_db
class TestAllThatWait:
    """A claim that has room for all of them takes them in one statement."""

    def test_the_highest_priority_begins_first(self, make_tasker):
        make_tasks(2, tenant="a", priority=-1)
        make_tasks(2, tenant="b", priority=1)
        worker = make_tasker()
        with CaptureQueriesContext(connection) as captured:
            claims = worker.claiming.others(worker.handler.ready(), 4)

        assert tenants(claims) == ["b", "b", "a", "a"]
        assert len(captured) == 1

    def test_none_is_taken_out_of_turn_if_there_is_one_too_many(self, make_tasker):
        make_tasks(4, tenant="a")
        make_tasks(1, tenant="b")

        assert sorted(tenants(make_tasker().claiming.up_to(4))) == ["a", "a", "a", "b"]

    def test_others_do_not_wait_for_those_without_a_key_to_run_out(self, make_tasker):
        make_tasks(1, serial="key")
        later = make_tasks(1, tenant="later")[0]
        Task.objects.filter(pk=later.pk).update(created_at=later.run_at - timedelta(hours=1))
        worker, served = make_tasker(), []
        for _ in range(2):
            make_tasks(1)
            served += worker.claiming.up_to(9)

        assert sorted(tenants(served)) == ["", "", "", "later"]
        assert "key" in {*Task.objects.filter(status="running").values_list("serial", flat=True)}

    def test_queues_with_limits_are_left_out(self, make_tasker, settings):
        limit(settings, concurrency=1)
        make_tasks(2)

        assert len(make_tasker().claiming.up_to(9)) == 1


@pytest.mark.django_db
class TestTurns:
    def test_one_tenant_with_most_tasks_delays_no_other_by_more_than_a_round(self, make_tasker):
        with connection.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO pgembed_task (spec, source_pk, kind, arguments, tenant)
                SELECT 'default', '', 'f', '{}', CASE WHEN n <= 90000 THEN 'big' ELSE n % 10 END
                FROM generate_series(1, 100000) AS n
                """.replace("ELSE n % 10", "ELSE (n % 10)::text")
            )
        worker = make_tasker()

        served = [one for _ in range(40) for one in tenants(worker.claiming.up_to(4))]

        everyone = {"big", *"0123456789"}
        rounds = [served[at : at + 11] for at in range(0, 154, 11)]
        assert [set(one) for one in rounds] == [everyone] * len(rounds)

    def test_a_tenant_that_comes_late_has_its_turn_within_a_round(self, make_tasker, clock):
        for tenant in "abcde":
            make_tasks(50, tenant=tenant)
        worker = make_tasker()
        worker.claiming.up_to(3)
        make_tasks(tenant="c2")
        clock.now += ANEW_SECONDS

        assert "c2" in tenants(worker.claiming.up_to(3))

    def test_many_tenants_are_served_in_turn_from_one_look_to_the_next(self, make_tasker, clock):
        names = [f"{number:03}" for number in range(100)]
        for name in names:
            make_tasks(3, tenant=name)
        worker = make_tasker()
        served = []
        for _ in range(20):
            served += tenants(worker.claiming.up_to(7))
            clock.now += ANEW_SECONDS

        assert len(set(served[:98])) == 98
        assert {served.count(name) for name in names} == {1, 2}

    def test_a_claim_goes_on_where_the_last_look_has_ended(self, make_tasker):
        names = [f"{number:03}" for number in range(100)]
        for name in names:
            make_tasks(1, tenant=name)
        make_tasks(9, tenant="low", priority=-1)
        worker = make_tasker()

        served = [tenants(worker.claiming.up_to(places)) for places in (4, 7, 7, 7)]

        assert [sorted(one) for one in served] == [
            names[:4],
            names[4:11],
            names[11:18],
            names[18:25],
        ]

    def test_tenants_with_many_keys_have_one_turn_each(self, make_tasker):
        for tenant, count in (("a", 30), ("b", 5), ("c", 5)):
            for number in range(count):
                make_tasks(1, tenant=tenant, serial=f"{tenant} {number}")
        worker = make_tasker()

        served = tenants([claim for _ in range(3) for claim in worker.claiming.up_to(3)])

        assert [served.count(one) for one in "abc"] == [3, 3, 3]

    def test_few_tenants_share_the_places(self, make_tasker):
        make_tasks(1, tenant="a")
        make_tasks(10, tenant="b")
        make_tasks(10, tenant="c")

        served = tenants(make_tasker().claiming.up_to(9))

        assert [served.count(one) for one in "abc"] == [1, 4, 4]

    def test_the_oldest_of_a_tenant_go_first(self, make_tasker):
        expected = [task.pk for task in make_tasks(6)]
        worker = make_tasker()

        claimed = [claim.id for _ in range(3) for claim in worker.claiming.up_to(2)]

        assert claimed == expected

    def test_the_highest_priority_goes_first_with_a_key_or_without(self, make_tasker):
        make_tasks(2, function="low")
        make_tasks(1, function="high", priority=10)
        make_tasks(1, function="higher", priority=20, serial="a")

        claimed = functions(make_tasker().claiming.up_to(2))

        assert sorted(claimed) == ["high", "higher"]

    def test_the_lowest_priority_goes_first_now_and_then(self, make_tasker):
        make_tasks(20, function="low", priority=-5)
        make_tasks(100, function="high")
        worker = make_tasker()

        claimed = [functions(worker.claiming.up_to(2)) for _ in range(2 * LOWEST_LANE_EVERY)]

        assert claimed.count(["low", "low"]) == 2

    def test_queues_take_turns(self, make_tasker):
        make_tasks(10, function="one")
        make_tasks(10, function="other", queue="llm")
        worker = make_tasker(QUEUE, "llm")

        claimed = [functions(worker.claiming.up_to(2)) for _ in range(4)]

        assert {tuple(one) for one in claimed} == {("one", "one"), ("other", "other")}
        assert [one != other for one, other in pairwise(claimed)] == [True] * 3

    def test_what_came_meanwhile_is_found(self, make_tasker):
        make_tasks(1)
        worker = make_tasker()
        assert len(worker.claiming.up_to(1)) == 1
        make_tasks(1)
        assert len(worker.claiming.up_to(5)) == 1
        assert worker.claiming.up_to(5) == []


@pytest.mark.django_db
class TestLater:
    def test_a_task_for_later_is_claimed_when_its_time_has_come(self, make_tasker):
        [task] = make_tasks(run_at="2100-01-01T00:00Z")
        worker = make_tasker()
        assert worker.claiming.up_to(5) == []
        assert worker.next_due_seconds() > 3600
        Task.objects.filter(pk=task.pk).update(
            run_at="2020-01-02T00:00Z", created_at="2020-01-01T00:00Z"
        )
        assert worker.next_due_seconds() <= 0

        [claim] = worker.claiming.up_to(5)

        assert claim.id == task.pk
        assert worker.next_due_seconds() is None

    def test_a_retried_task_is_for_later_again(self, make_tasker):
        make_tasks(1)
        worker = make_tasker()
        [claim] = worker.claiming.up_to(5)
        jobs.retry(claim, "no", max_attempts=5, delay_seconds=60, using="default", table=TASKS)
        assert 50 < worker.next_due_seconds() <= 60
        assert worker.claiming.up_to(5) == []
        Task.objects.update(run_at="2020-01-02T00:00Z", created_at="2020-01-01T00:00Z")

        assert len(worker.claiming.up_to(5)) == 1

    def test_what_waits_behind_its_key_is_looked_for_again_soon(self, make_tasker):
        make_tasks(2, serial="a")
        worker = make_tasker()
        worker.claiming.up_to(5)

        assert worker.next_due_seconds() <= 0


@pytest.mark.django_db
class TestSerial:
    def test_one_of_a_key_runs_at_a_time(self, make_tasker):
        for key in "ab":
            make_tasks(3, serial=key)
        worker = make_tasker()
        first = worker.claiming.up_to(9)
        assert serials(first) == ["a", "b"]
        assert worker.claiming.up_to(9) == []
        Task.objects.filter(pk=first[0].id).delete()

        [second] = worker.claiming.up_to(9)
        assert second.id != first[0].id
        assert sorted(Task.objects.filter(status="running").values_list("serial", flat=True)) == [
            "a",
            "b",
        ]

    def test_the_same_key_of_another_queue_is_another_one(self, make_tasker):
        make_tasks(1, serial="a")
        make_tasks(1, serial="a", queue="llm")

        assert len(make_tasker(QUEUE, "llm").claiming.up_to(9)) == 2

    def test_the_oldest_of_a_key_goes_first(self, make_tasker):
        expected = [task.pk for task in make_tasks(3, serial="a")]
        worker = make_tasker()
        claimed = []
        for _ in expected:
            [claim] = worker.claiming.up_to(9)
            claimed.append(claim.id)
            Task.objects.filter(pk=claim.id).delete()

        assert claimed == expected

    def test_keys_of_a_tenant_take_turns(self, make_tasker, clock):
        for key in "abc":
            make_tasks(5, serial=key)
        worker = make_tasker()
        claimed = []
        for _ in range(6):
            [claim] = worker.claiming.up_to(1)
            claimed += serials([claim])
            Task.objects.filter(pk=claim.id).delete()
            clock.now += ANEW_SECONDS

        assert claimed == ["a", "b", "c", "a", "b", "c"]

    def test_a_suspect_whose_key_runs_is_left_alone(self, make_tasker):
        make_tasks(1, serial="a")
        make_tasks(1, serial="a", crashes=1)
        worker = make_tasker()
        worker.claiming.up_to(9)

        assert worker.claiming.up_to(9) == []


@pytest.mark.django_db
class TestSuspects:
    def test_nothing_is_claimed_beside_a_task_that_a_worker_died_with(self, make_tasker):
        [alone] = make_tasks(1, crashes=1)
        worker = make_tasker()
        assert worker.claim()
        [ordinary] = make_tasks(1)

        assert not worker.claim()

        assert [*worker.held.jobs] == [alone.pk]
        assert Task.objects.get(pk=ordinary.pk).status == "pending"

    def test_it_is_not_claimed_beside_others(self, make_tasker):
        make_tasks(1)
        worker = make_tasker()
        assert worker.claim()
        [alone] = make_tasks(1, crashes=1)

        assert not worker.claim()

        assert Task.objects.get(pk=alone.pk).status == "pending"


START_ALONE = """
    UPDATE pgembed_task AS job
    SET
        status = 'running',
        claims = claims + 1,
        worker_id = 1,
        started_at = now(),
        lease_expires_at = now() + interval '1 hour'
    WHERE id = %s
      AND NOT EXISTS (
          SELECT FROM pgembed_task AS other WHERE status = 'running' AND other.serial = job.serial
      )
"""


@pytest.mark.django_db(transaction=True)
class TestTwoClaimsOfAKey:
    """Tasks of different priorities: each claim sees another one at the head of the key."""

    @pytest.fixture
    def heads(self) -> list[Task]:
        return make_tasks(1, serial="a", priority=0) + make_tasks(1, serial="a", priority=5)

    def test_the_second_one_leaves_the_key(self, heads, connect):
        given = {
            "queue": QUEUE,
            "priority": 5,
            "tenants": [""],
            "mosts": [1],
            "serials": [""],
        }
        with connect() as other:
            assert other.execute(turns.HOLD_KEYS, given).fetchall() == [(heads[1].pk, None)]
            other.execute(START_ALONE, [heads[1].pk])

            assert start(priority=0) == []

            other.commit()
        assert start(priority=0) == []
        Task.objects.filter(pk=heads[1].pk).delete()
        assert [claim.id for claim in start(priority=0)] == [heads[0].pk]

    def test_what_began_after_the_look_is_seen_by_the_start(self, heads, connect):
        """A claim that has looked, and gets the key's lock as soon as the other has committed."""
        with connect() as late:
            assert late.execute("SELECT count(*) FROM pgembed_task").fetchone() == (2,)
            with connect() as other:
                other.execute(START_ALONE, [heads[1].pk])
                other.commit()
            found = late.execute(
                TASKS(turns.START_SERIAL),
                {"ids": [heads[0].pk], "older": [], "worker": 1, "lease": 60},
            ).fetchall()
            late.rollback()

        assert found == []

    def test_a_key_whose_suspect_is_being_started_is_left_alone(self, heads, connect):
        """That takes no lock of the key: the index over running tasks makes this one give way."""
        with connect() as other:
            other.execute(START_ALONE, [heads[1].pk])

            assert start(priority=0) == []

    def test_asking_what_runs_is_not_enough(self, heads, connect, writer):
        """Neither claim sees the other. Without the index over running tasks both would run."""
        with connect() as other:
            other.execute(START_ALONE, [heads[1].pk])
            writer.start(START_ALONE, heads[0].pk)
            until_waiting(writer)
            other.commit()

        with pytest.raises(psycopg.errors.UniqueViolation):
            writer.end()


@pytest.mark.django_db
class TestCollapse:
    def test_the_newest_of_a_key_runs_and_the_older_ones_go(self, make_tasker):
        coalesced = {"unit": "a", "serial": "a", "is_coalesced": True}
        made = [make_tasks(1, **coalesced, function=f"f{n % 2}")[0] for n in range(6)]
        worker = make_tasker()

        [claim] = worker.claiming.up_to(9)

        assert claim.id == made[4].pk
        # Another function's are none of its business.
        assert set(Task.objects.values_list("pk", flat=True)) == {
            made[4].pk,
            made[1].pk,
            made[3].pk,
            made[5].pk,
        }


@pytest.mark.django_db(transaction=True)
class TestCoalescing:
    def test_what_a_writer_is_changing_is_left_to_the_next_claim(self, connect):
        coalesced = {"unit": "a", "serial": "a", "is_coalesced": True}
        old, new = make_tasks(2, **coalesced)
        with connect() as other:
            other.execute("SELECT FROM pgembed_task WHERE id = %s FOR UPDATE", [new.pk])

            assert [claim.id for claim in start()] == [old.pk]

        Task.objects.filter(pk=old.pk).delete()
        assert [claim.id for claim in start()] == [new.pk]

    def test_no_key_misses_its_last_write(self, connect):
        """Four writers and three workers, as fast as they can."""
        keys = [f"key {number}" for number in range(12)]
        written: dict[str, float] = {}
        started: dict[str, float] = {}
        writing = [True]

        def write(number: int) -> None:
            with connect() as own:
                for turn in range(40):
                    chosen = [keys[(number * 5 + turn * step) % 12] for step in (1, 3, 7)]
                    for key in chosen:
                        own.execute(
                            "SELECT pgembed_enqueue_task_v1('f', coalesce_key => %s, "
                            "bump => 'replace')",
                            [key],
                        )
                    for key in chosen:
                        written[key] = max(written.get(key, 0.0), time.perf_counter())
                    own.commit()

        def work() -> None:
            try:
                while writing[0] or Task.objects.exists():
                    turns.lanes([QUEUE], using="default")
                    for claim in start(most=3):
                        started[claim.source_pk] = time.perf_counter()
                        Task.objects.filter(pk=claim.id).delete()
            finally:
                connections.close_all()

        with ThreadPoolExecutor(7) as pool:
            workers = [pool.submit(work) for _ in range(3)]
            writers = [pool.submit(write, number) for number in range(4)]
            try:
                for one in writers:
                    one.result(timeout=60)  # a deadlock would be raised here
            finally:
                writing[0] = False
            for one in workers:
                one.result(timeout=60)

        assert written.keys() == set(keys)
        assert [key for key in keys if started[key] < written[key]] == []


PLAIN = """
    CREATE TABLE plain (key text, status text DEFAULT 'pending');
    CREATE UNIQUE INDEX plain_key ON plain (key) {where}
"""


@pytest.fixture
def plain(connect: Any) -> Any:
    with connect(autocommit=True) as own:
        yield lambda where: own.execute(PLAIN.replace("{where}", where)) and own
        own.execute("DROP TABLE IF EXISTS plain")


@pytest.mark.django_db(transaction=True)
class TestPlainDesigns:
    """Why tasks of a key coalesce as they do: what simpler ways lose."""

    def test_a_key_that_is_unique_while_it_runs_loses_the_last_write(self, plain):
        own = plain("")
        own.execute("INSERT INTO plain VALUES ('a', 'running')")
        own.execute("INSERT INTO plain VALUES ('a') ON CONFLICT DO NOTHING")  # a write
        own.execute("DELETE FROM plain WHERE status = 'running'")  # it has ended

        assert own.execute("SELECT count(*) FROM plain").fetchone() == (0,)

    def test_upserts_of_free_keys_deadlock(self, plain, connect, writer):
        plain("WHERE status = 'pending'")
        upsert = """
            INSERT INTO plain VALUES (%s) ON CONFLICT (key) WHERE status = 'pending'
            DO UPDATE SET status = 'pending'
        """
        with connect() as other:
            other.execute(upsert, ["a"])
            writer.connection.execute(upsert, ["b"])
            writer.start(upsert, "a")
            until_waiting(writer)
            with pytest.raises(psycopg.errors.DeadlockDetected):
                deadlocked(other, writer, upsert)

    def test_ours_wait_for_nobody(self, connect):
        enqueue = "SELECT pgembed_enqueue_task_v1('f', coalesce_key => %s)"
        with connect() as one, connect() as other:
            for each in (one, other):
                each.execute("SET lock_timeout = '1ms'")
            one.execute(enqueue, ["a"])
            other.execute(enqueue, ["b"])
            one.execute(enqueue, ["b"])
            other.execute(enqueue, ["a"])
            one.commit()
            other.commit()

        assert len(start(most=9)) == 2
        assert Task.objects.count() == 2


def deadlocked(one: psycopg.Connection, writer: Any, upsert: str) -> None:
    """Let both wait for each other: one of them is the victim."""
    one.execute(upsert, ["b"])
    one.commit()
    writer.end()


def limit(settings: Any, **most: Any) -> None:
    settings.TASKS = {
        "default": {
            "BACKEND": "pgembed_django.tasks.PostgresBackend",
            "QUEUES": [QUEUE, "llm"],
            "OPTIONS": {"limits": {QUEUE: most}},
        }
    }


@pytest.mark.django_db
class TestLimits:
    @pytest.mark.parametrize("serial", [None, "key"])
    def test_at_once(self, make_tasker, settings, serial):
        limit(settings, concurrency=3)
        for number in range(9):
            make_tasks(1, serial=serial and f"{serial} {number}")
        one, other = make_tasker(), make_tasker()

        first = one.claiming.up_to(2)
        second = other.claiming.up_to(9)

        assert [len(first), len(second), len(one.claiming.up_to(9))] == [2, 1, 0]
        Task.objects.filter(pk=first[0].id).delete()
        assert len(other.claiming.up_to(9)) == 1

    def test_at_once_of_a_tenant(self, make_tasker, settings):
        limit(settings, tenant_concurrency=2)
        make_tasks(9, tenant="a")
        make_tasks(9, tenant="b")
        make_tasks(1, tenant="c")

        assert sorted(tenants(make_tasker().claiming.up_to(9))) == ["a", "a", "b", "b", "c"]
        assert make_tasker().claiming.up_to(9) == []

    def test_in_a_minute(self, make_tasker, settings):
        limit(settings, per_minute=3)
        make_tasks(9)
        worker = make_tasker()
        assert len(worker.claiming.up_to(9)) == 1
        assert worker.claiming.up_to(9) == []
        rate = TaskRate.objects.get(tenant=None)
        TaskRate.objects.update(free_at="2020-01-01T00:00Z")

        assert len(worker.claiming.up_to(9)) == 1
        assert TaskRate.objects.get(tenant=None).free_at >= rate.free_at

    def test_in_a_minute_of_a_tenant(self, make_tasker, settings):
        limit(settings, tenant_per_minute=3)
        make_tasks(9, tenant="a")
        make_tasks(2, tenant="b")

        assert sorted(tenants(make_tasker().claiming.up_to(9))) == ["a", "b"]
        assert make_tasker().claiming.up_to(9) == []

    def test_what_was_saved_up_in_a_second_may_start_at_once(self, make_tasker, settings):
        limit(settings, per_minute=180)
        make_tasks(9)

        assert len(make_tasker().claiming.up_to(9)) == 3

    def test_a_suspect_counts(self, make_tasker, settings):
        limit(settings, concurrency=1)
        make_tasks(2, crashes=1)
        assert len(make_tasker().claiming.up_to(9)) == 1
        assert make_tasker().claiming.up_to(9) == []

    def test_a_suspect_of_a_tenant_at_its_limit_stays(self, make_tasker, settings):
        limit(settings, tenant_concurrency=1)
        make_tasks(1, tenant="a")
        assert len(make_tasker().claiming.up_to(9)) == 1
        make_tasks(1, tenant="a", crashes=1)
        assert make_tasker().claiming.up_to(9) == []
        assert Task.objects.get(crashes=1).status == "pending"

    def test_nobody_pays_for_limits_of_another_queue(
        self, make_tasker, settings, django_assert_max_num_queries
    ):
        limit(settings, concurrency=1)
        make_tasks(9, queue="llm")
        worker = make_tasker("llm")
        worker.claiming.up_to(2)
        with django_assert_max_num_queries(2) as captured:
            assert len(worker.claiming.up_to(2)) == 2
        assert not [one for one in captured.captured_queries if "count(" in one["sql"]]

    def test_past_rates_are_forgotten(self):
        TaskRate.objects.create(queue=QUEUE, tenant="a", free_at="2020-01-01T00:00Z")
        TaskRate.objects.create(queue=QUEUE, tenant="b", free_at="2100-01-01T00:00Z")

        assert limits.forget_past(using="default") == 1
        assert TaskRate.objects.get().tenant == "b"

    @pytest.mark.parametrize(
        ("most", "said"),
        [
            ({"concurency": 1}, "has 'concurency'. Choose from: concurrency, per_minute"),
            ({"concurrency": 0}, "['concurrency'] is 0. Give a whole number from 1 on"),
            ({"per_minute": "9"}, "['per_minute'] is '9'. Give a whole number"),
            ({"per_minute": True}, "['per_minute'] is True. Give a whole number"),
        ],
    )
    def test_a_worker_refuses_what_is_no_limit(self, make_tasker, settings, most, said):
        limit(settings, **most)
        with pytest.raises(ImproperlyConfigured) as refused:
            make_tasker()
        assert said in str(refused.value)


@pytest.mark.django_db(transaction=True)
def test_two_claims_at_once_do_not_exceed_a_limit(make_tasker, settings, connect):
    limit(settings, concurrency=1)
    make_tasks(3)
    with connect() as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtextextended('pgembed_task default', 0))")
        assert make_tasker().claiming.up_to(9) == []
    assert len(make_tasker().claiming.up_to(9)) == 1


@pytest.mark.django_db
class TestOutages:
    @pytest.fixture(autouse=True)
    def answers(self) -> Any:
        tasks.ANSWERS.clear()
        yield tasks.ANSWERS
        tasks.ANSWERS.clear()

    def due(self) -> None:
        """Let the released ones be due: the database's clock does not follow the test's."""
        Task.objects.update(run_at="2020-01-02T00:00Z", created_at="2020-01-03T00:00Z")

    def test_pauses_the_queue_and_spends_no_attempt(self, make_tasker, answers, clock):
        answers += [ProviderUnavailable("busy")]
        for _ in range(3):
            tasks.ask.enqueue("?")
        worker = make_tasker("llm", QUEUE, places=1)
        worker.step()
        worker.step()
        task = Task.objects.get(last_error__contains="busy")

        assert (task.status, task.attempts, task.outages) == ("pending", 0, 0)
        assert worker.handler.ready().specs == [QUEUE]
        assert worker.handler.hindrances().paused == {"llm": "chat: busy"}
        assert 0 < worker.handler.wait_seconds < 2
        assert Task.objects.count() == 3

    def test_one_at_a_time_is_started_until_one_is_answered(self, make_tasker, answers, clock):
        answers += [ProviderUnavailable("busy"), ProviderUnavailable("still busy")]
        for _ in range(9):
            tasks.ask.enqueue("?")
        worker = make_tasker("llm", places=1)
        worker.step()
        worker.step()
        worker.handler._concurrency = 9
        self.due()
        assert not worker.claim()
        clock.now += 2
        worker.step()
        assert len(worker.held.jobs) == 1
        worker.step()
        assert worker.handler.hindrances().paused == {"llm": "chat: still busy"}
        clock.now += 3
        self.due()
        while worker.step():
            pass

        assert worker.completed == 9
        assert worker.handler.hindrances().paused == {}

    def test_nobody_is_told_of_a_failure_at_the_last_attempt(
        self, make_tasker, answers, clock, settings
    ):
        settings.PGEMBED_MAX_ATTEMPTS = 1
        told = []

        def receive(task_result, **_: object) -> None:
            told.append(task_result.status)

        api.task_finished.connect(receive)
        try:
            answers += [ProviderUnavailable("busy"), InputRefused("no")]
            tasks.ask.enqueue("?")
            worker = make_tasker("llm", places=1)
            worker.step()
            worker.step()
            assert (Task.objects.get().status, told) == ("pending", [])
            self.due()
            clock.now += 2
            while worker.step():
                pass
        finally:
            api.task_finished.disconnect(receive)
        assert (Task.objects.get().status, told) == ("failed", [api.TaskResultStatus.FAILED])

    def test_honours_retry_after(self, make_tasker, answers, clock):
        answers += [ProviderUnavailable("busy", retry_after_seconds=90)]
        tasks.ask.enqueue("?")
        worker = make_tasker("llm", places=1)
        worker.step()
        worker.step()

        assert worker.handler.wait_seconds == 90

    def test_a_lost_provider_makes_a_suspect_and_fails_it_in_the_end(
        self, make_tasker, answers, clock
    ):
        most = conf.current().max_crashes
        answers += [ProviderLost("gone")] * (most + 1)
        tasks.ask.enqueue("?")
        worker = make_tasker("llm", places=1)
        for count in range(1, most + 1):
            worker.step()
            worker.step()
            assert Task.objects.get().outages == count
            self.due()
            clock.now += 3600
        worker.step()
        worker.step()

        assert Task.objects.get().status == "failed"

    def test_what_is_refused_fails_at_once(self, make_tasker, answers):
        answers += [InputRefused("too long")]
        tasks.ask.enqueue("?")
        worker = make_tasker("llm", places=1)
        worker.step()
        worker.step()

        assert Task.objects.get().status == "failed"

    def test_a_queue_that_a_person_has_paused(self, make_tasker, clock):
        Pause.objects.create(what="spec", name="llm", by="ann")
        tasks.ask.enqueue("?")
        worker = make_tasker("llm")
        assert not worker.step()
        assert worker.handler.hindrances().paused == {"llm": "Paused by ann"}
        jobs.resume("spec", "llm", using="default")
        clock.now += 5

        assert worker.step()

    def test_a_provider_that_a_person_has_paused(self, make_tasker, clock):
        Pause.objects.create(what="provider", name="chat", by="ann")
        tasks.ask.enqueue("?")
        worker = make_tasker("llm")
        worker.step()
        worker.step()
        assert (Task.objects.get().status, Task.objects.get().attempts) == ("pending", 0)
        assert worker.handler.hindrances().paused == {"llm": "Paused by ann"}
        jobs.resume("provider", "chat", using="default")
        clock.now += 5
        self.due()
        while worker.step():
            pass

        assert worker.completed == 1
