"""A handler of one's own, against the protocol alone: it keeps a catalogue in upper case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from django.db import connection, transaction

from pgembed_django import conf
from pgembed_django.core import database
from pgembed_django.models import Job
from pgembed_django.models import Worker as WorkerRow
from pgembed_django.queue import jobs
from pgembed_django.queue.handler import Gaps, Handler, Write
from pgembed_django.queue.in_flight import HeldJob
from pgembed_django.queue.jobs import Claim
from pgembed_django.queue.work import Work
from pgembed_django.queue.worker import Worker
from tests.db.conftest import expire_leases, reap
from tests.played import Clock

pytestmark = pytest.mark.django_db(transaction=True)

SPEC = "catalogue"


class Shouting(Handler):
    """Writes each name of a catalogue in upper case. The name "poison" fails."""

    specs = {SPEC: 0}
    room = 2

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = names
        self._taken: list[Claim] = []

    def take(self, claims: Sequence[Claim]) -> None:
        self._taken += claims

    def collect(self) -> bool:
        taken, self._taken = self._taken, []
        for one in taken:
            if one.source_pk == "poison":
                self.held.retry(one, "It is poison.")
            else:
                self.held.finish(one, one.source_pk.upper())
        return bool(taken)

    def writing(self, finished: Sequence[HeldJob]) -> Write:
        def write(ours: Sequence[HeldJob]) -> dict[int, int]:
            with transaction.atomic(), connection.cursor() as cursor:  # like bulk_create()
                for job in ours:
                    cursor.execute("INSERT INTO shouted VALUES (%s)", [job.result])
            # Of all, though others may hold some: those are not completed.
            return {job.claim.id: len(job.result) for job in finished}

        return write

    def find_gaps(self, page: str) -> Gaps:
        shouted = {name.lower() for name in shouts()}
        return Gaps(SPEC, [name for name in self.names if name not in shouted])


def shouts() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM shouted ORDER BY name")
        return [name for [name] in cursor.fetchall()]


@pytest.fixture(autouse=True)
def shouted() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE shouted (name text)")
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE shouted")


@pytest.fixture
def make_work() -> Callable[[Handler], Work]:
    def make(handler: Handler) -> Work:
        settings = conf.current()
        return Work(handler, using="default", worker_id=1, settings=settings, inline=True)

    return make


def drain(handler: Handler) -> int:
    return Worker([handler], using="default", drain=True).run()


def enqueue(*names: str) -> None:
    jobs.enqueue(SPEC, names, kind=Job.Kind.WRITE, priority=0, using="default")


def test_its_jobs_are_claimed_written_and_completed() -> None:
    enqueue("a", "b", "c")

    assert drain(Shouting()) == 3

    assert shouts() == ["A", "B", "C"]
    assert set(Job.objects.values_list("status", flat=True)) == {"succeeded"}
    assert not WorkerRow.objects.exists()


def test_a_bad_job_fails_alone(settings) -> None:
    settings.PGEMBED_MAX_ATTEMPTS = 1
    enqueue("a", "poison", "b")

    drain(Shouting())

    assert shouts() == ["A", "B"]
    assert Job.objects.get(status="failed").last_error == "It is poison."


def test_what_cannot_be_written_fails_alone(settings) -> None:
    settings.PGEMBED_MAX_ATTEMPTS = 1
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE shouted ADD CHECK (name <> 'B')")
    enqueue("a", "b", "c")

    drain(Shouting())

    assert shouts() == ["A", "C"]
    assert "violates check constraint" in Job.objects.get(status="failed").last_error


def test_the_result_of_a_lost_job_is_not_written(make_work) -> None:
    enqueue("a")
    frozen = make_work(Shouting())
    frozen.step()
    expire_leases()
    reap()
    assert jobs.claim_suspect([SPEC], lease=jobs.Lease(9, 600), using="default")

    frozen.step()

    assert shouts() == []
    assert frozen.held.is_empty


def test_gaps_that_it_tells_of_are_filled() -> None:
    assert drain(Shouting(["a", "b"])) == 2

    assert shouts() == ["A", "B"]


def test_a_gap_that_has_failed_waits_until_its_parking_is_over(settings) -> None:
    settings.PGEMBED_MAX_ATTEMPTS = 1
    handler = Shouting(["poison"])

    drain(handler)
    drain(handler)

    assert Job.objects.filter(status="failed").count() == 1


class Faulty(Shouting):
    """Its own code has errors: in ``writing`` of one job, and in ``find_gaps``."""

    def __init__(self, *, is_pipelined: bool = False) -> None:
        super().__init__()
        self.is_pipelined = is_pipelined

    def writing(self, finished: Sequence[HeldJob]) -> Write:
        def write(ours: Sequence[HeldJob]) -> dict[int, int]:
            for job in ours:
                database.send("default", "INSERT INTO shouted VALUES (%(name)s)", name=job.result)
            if any(job.result == "B" for job in ours):
                raise KeyError("B is unknown")
            return {job.claim.id: 0 for job in ours}

        return write

    def find_gaps(self, page: str) -> Gaps:
        raise KeyError("no catalogue")


@pytest.mark.parametrize("is_pipelined", [False, True])
def test_an_error_in_its_own_writing_fails_that_job_alone(settings, is_pipelined) -> None:
    settings.PGEMBED_MAX_ATTEMPTS = 1
    enqueue("a", "b", "c")

    assert drain(Faulty(is_pipelined=is_pipelined)) == 2

    assert shouts() == ["A", "C"]
    assert Job.objects.get(status="failed").last_error == "KeyError: 'B is unknown'"


def test_an_error_in_its_own_looking_for_gaps_keeps_no_other_handler_from_theirs(caplog) -> None:
    faulty, other = Faulty(), Shouting(["a"])
    faulty.specs = {"another": 0}

    Worker([faulty, other], using="default", drain=True).run()

    assert shouts() == ["A"]
    [told] = [record for record in caplog.records if record.event == "pgembed.chore_refused"]
    assert "no catalogue" in told.error


class Patient(Shouting):
    """Never ends the job of the name "long"."""

    def take(self, claims: Sequence[Claim]) -> None:
        super().take([one for one in claims if one.source_pk != "long"])


def test_one_long_job_does_not_stop_all_claims_while_a_suspect_waits() -> None:
    clock = Clock()
    settings = conf.current()
    work = Work(
        Patient(), using="default", worker_id=1, settings=settings, inline=True, clock=clock
    )
    enqueue("long")
    work.step()
    enqueue("suspect")
    Job.objects.filter(source_pk="suspect").update(crashes=1)
    enqueue("a", "b", "c")

    for _ in range(9):
        clock.now += 60
        work.step()

    assert shouts() == ["A", "B", "C"]
    assert [job.claim.source_pk for job in work.held.jobs.values()] == ["long"]
