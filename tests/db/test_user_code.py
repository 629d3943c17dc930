"""Whatever a project's code does fails its row alone, and leaves our session as it was."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import close_old_connections, connection, connections, models, transaction
from django.db.models.signals import post_init
from django.utils import timezone, translation
from psycopg import sql

from pgembed_django import sources
from pgembed_django.chunking import Chunk, Chunker
from pgembed_django.core import faults
from pgembed_django.core.user_code import progress_of
from pgembed_django.declaration import specs
from pgembed_django.embedding.units import State
from pgembed_django.models import Job
from pgembed_django.queue import maintenance
from pgembed_django.spaces.backfill import Backfill
from tests.app.models import Note, Product, ProductEmbedding
from tests.db.conftest import reconcile_deeply


def run(statement: str | sql.Composed) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even its message")


class Wordless(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


class Shouting(str):
    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        raise ValueError

    def __format__(self, spec: str) -> str:
        raise ValueError


class Loud(Exception):
    def __str__(self) -> str:
        return Shouting("loud")


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError("no name")


class Unnamed(Exception, metaclass=Nameless):
    pass


class Sealed(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise ValueError("no attributes")


def throw(error: BaseException) -> Callable[[], Any]:
    def act() -> None:
        raise error

    return act


def recurse() -> Any:
    return recurse()


def exit_in_a_group() -> None:
    raise BaseExceptionGroup("several", [SystemExit(3), ValueError("one of them")])


async def be_cancelled() -> None:
    raise asyncio.CancelledError


# What a session keeps: a name, and a value.
SESSION = """
    SELECT name, setting FROM pg_settings WHERE source = 'session'
    UNION ALL
    SELECT 'role', current_user || ' of ' || session_user
    UNION ALL
    SELECT 'an advisory lock', row(classid, objid, objsubid, mode)::text
    FROM pg_locks
    WHERE locktype = 'advisory' AND pid = pg_backend_pid()
    UNION ALL
    SELECT 'LISTEN ' || channel, '' FROM pg_listening_channels() AS channel
    UNION ALL
    SELECT 'the prepared statement ' || name, '' FROM pg_prepared_statements WHERE from_sql
    UNION ALL
    SELECT 'the cursor ' || name, '' FROM pg_cursors WHERE is_holdable
    UNION ALL
    SELECT 'the temporary table ' || relname, oid::text
    FROM pg_class
    WHERE relnamespace = pg_my_temp_schema() AND relkind = 'r'
"""

RAISED: dict[str, tuple[Callable[[], Any], str]] = {
    "sys.exit": (lambda: sys.exit(3), "SystemExit: 3"),
    "exit": (throw(SystemExit("bye")), "SystemExit: bye"),
    "interrupt": (throw(KeyboardInterrupt()), "KeyboardInterrupt"),
    "generator": (throw(GeneratorExit()), "GeneratorExit"),
    "stop": (throw(StopIteration()), "StopIteration"),
    "base": (throw(BaseException("all")), "BaseException: all"),
    "group": (exit_in_a_group, "BaseExceptionGroup: several (2 sub-exceptions)"),
    "cancelled": (lambda: asyncio.run(be_cancelled()), "CancelledError"),
    "memory": (throw(MemoryError("none left")), "MemoryError: none left"),
    "recursion": (recurse, "RecursionError: maximum recursion depth exceeded"),
    "unspeakable": (throw(Unspeakable()), "Unspeakable: its message cannot be read"),
    "wordless": (throw(Wordless()), "Wordless: its message cannot be read"),
    "loud": (throw(Loud()), "Loud: loud"),
    "unnamed": (throw(Unnamed("here")), "Unnamed: here"),
    "sealed": (throw(Sealed("shut")), "Sealed: shut"),
    "number": (lambda: 5, "TypeError: Product.pitch() returned int."),
    "bytes": (lambda: b"bytes", "TypeError: Product.pitch() returned bytes."),
    "lazy": (lambda: translation.gettext_lazy("Yes"), "TypeError: Product.pitch() returned"),
    "list": (lambda: ["text"], "TypeError: Product.pitch() returned list."),
}

SESSION_CHANGED: dict[str, tuple[Callable[[], Any], str]] = {
    "set": (lambda: run("SET search_path = nowhere"), "SET search_path"),
    "set_config": (lambda: run("SELECT set_config('work_mem', '65kB', false)"), "set_config"),
    "role": (lambda: run("SET ROLE pg_monitor"), "SET ROLE"),
    "zone": (lambda: run(sql.SQL("SET TIME ZONE {}").format("Asia/Tokyo")), "SET TIME"),
    "read only": (
        lambda: run("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"),
        "SET SESSION",
    ),
    "two": (lambda: run("SELECT 1; SET work_mem = '65kB'"), "SELECT 1;"),
    "table": (lambda: run("CREATE TEMP TABLE app_product (id int)"), "CREATE TEMP"),
    "into": (lambda: run("SELECT 1 AS id INTO TEMP app_product"), "SELECT 1"),
    "undo": (lambda: (run("SET work_mem = '65kB'"), run("RESET work_mem")), "SET work_mem"),
}
OUTSIDE_A_TRANSACTION: dict[str, tuple[Callable[[], Any], str]] = {
    "prepare": (lambda: run("PREPARE one AS SELECT 1"), "PREPARE one"),
    "lock": (lambda: run("SELECT pg_advisory_lock(5)"), "SELECT pg_advisory_lock(5)"),
    "listen": (lambda: run("LISTEN news"), "LISTEN news"),
    "cursor": (lambda: run("DECLARE one CURSOR WITH HOLD FOR SELECT 1"), "DECLARE one"),
}


def leave_broken() -> None:
    connection.set_autocommit(False)
    try:
        run("SELECT 1 / 0")
    except Exception:  # noqa: BLE001 - as a project may do
        return


OPENED: dict[str, Callable[[], Any]] = {
    "begin": lambda: run("BEGIN"),
    "autocommit": lambda: connection.set_autocommit(False),
    "atomic": lambda: transaction.atomic().__enter__(),
    "broken": leave_broken,
    "marked": lambda: setattr(connection, "needs_rollback", True),
}

CLOSED: dict[str, Callable[[], Any]] = {
    "close": lambda: connection.close(),
    "all": connections.close_all,
    "old": close_old_connections,
    "driver": lambda: connection.connection.close(),
}

HARMLESS: dict[str, Callable[[], Any]] = {
    "activate": lambda: (timezone.activate("Asia/Tokyo"), translation.activate("de")),
    "swallow": lambda: suppressed(lambda: run("SELECT 1 / 0")),
    "local": lambda: within("SET LOCAL search_path = nowhere"),
    "local config": lambda: within("SELECT set_config('search_path', 'nowhere', true)"),
    "wrap": lambda: connection.execute_wrappers.append(throw(ValueError("wrapped"))),
    "union": lambda: list(Product.objects.all()[:1].union(Product.objects.all()[:1])),
    "fork": lambda: fork(),
    "write": lambda: Product.objects.filter(title="written").update(price=7),
}


def fork() -> None:
    """What the child returns to must not go on as a second worker."""
    pid = os.fork()
    if pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def within(statement: str) -> None:
    with transaction.atomic():
        run(statement)


def suppressed(act: Callable[[], Any]) -> None:
    try:
        with transaction.atomic():
            act()
    except Exception:  # noqa: BLE001 - as a project may do
        return


@pytest.fixture
def work(make_worker, monkeypatch) -> Callable[..., dict[str, tuple[str, str]]]:
    """Embed rows whose text methods act. Returns the status and error of each row's job."""

    def work(acts: dict[str, Callable[[], Any]]) -> dict[str, tuple[str, str]]:
        def pitch(product: Product) -> Any:
            # What an unchanged session sees.
            assert Product.objects.filter(pk=product.pk).exists()
            where = translation.get_language(), timezone.get_current_timezone_name()
            text = " ".join([product.title, "in", *where])
            told = acts[product.title]() if product.title in acts else None
            return told if product.title in RAISED else text

        monkeypatch.setattr(Product, "pitch", pitch)
        for title in acts:
            Product.objects.create(title=f"before {title}")
            Product.objects.create(title=title)
        Product.objects.create(title="written")
        worker = make_worker(max_attempts=1)
        before = session()
        while worker.step():
            pass
        assert session() == before
        jobs = Job.objects.filter(spec="app.ProductEmbedding")
        ended = {pk: (status, error) for pk, status, error in jobs.values_list(*JOB)}
        return {row.title: ended.pop(str(row.pk)) for row in Product.objects.all()}

    return work


JOB = ("source_pk", "status", "last_error")


def session() -> set[tuple[str, str]]:
    with connection.cursor() as cursor:
        cursor.execute(SESSION)
        # That one is ours, for a transaction.
        return {row for row in cursor.fetchall() if row[0] != "lock_timeout"}


@pytest.mark.django_db
def test_what_the_backend_runs_for_each_cursor_is_not_the_codes(work, monkeypatch):
    """That of django-tenants sets the search_path."""
    opened = connection._cursor

    def of_tenant(name: str | None = None) -> Any:
        cursor = opened(name)
        cursor.execute("SET search_path = public")
        return cursor

    monkeypatch.setattr(connection, "_cursor", of_tenant)

    ended = work({"reads": Product.objects.count, "sets": lambda: run("SET search_path = x")})

    assert ended["reads"] == ("succeeded", "")
    assert ended["sets"][0] == "failed"
    assert "SET search_path" in ended["sets"][1]


@pytest.mark.django_db(transaction=True)  # another thread gives the jobs back
def test_a_row_whose_code_never_returns_is_charged_alone(make_worker, monkeypatch):
    begun, gate = threading.Event(), threading.Event()

    def pitch(product: Product) -> str:
        if product.title == "endless":
            begun.set()
            gate.wait(30)
        return product.title

    monkeypatch.setattr(Product, "pitch", pitch)
    for title in ("a", "endless", "b"):
        Product.objects.create(title=title)
    worker = make_worker()

    def step() -> None:
        worker.step()
        connection.close()

    thread = threading.Thread(target=step)
    thread.start()
    begun.wait(30)
    assert thread.ident is not None
    call = progress_of(thread.ident).call
    assert call is not None
    worker.held.give_up(*call, "it never ends")
    gate.set()
    thread.join(30)

    endless = Job.objects.filter(spec="app.ProductEmbedding", source_pk=call.source_pk)
    assert endless.values_list(*CHARGED).get() == ("pending", 0, 1, "it never ends")
    neighbours = Job.objects.difference(endless)
    assert set(neighbours.values_list(*CHARGED)) == {("pending", 0, 0, "")}
    assert Product.objects.get(pk=call.source_pk).title == "endless"

    while worker.step():  # which has lost them, and claims them again
        pass
    assert set(Job.objects.values_list("status", flat=True)) == {"succeeded"}


@pytest.mark.django_db
def test_slow_code_leaves_the_worker_time_for_its_leases_between_two_rows(make_worker, monkeypatch):
    monkeypatch.setattr(sources, "MADE_SECONDS", 0)
    for title in "abcd":
        Product.objects.create(title=title)
    worker = make_worker()

    planned = []
    while worker.step():
        of_spec = [one for one in worker.handler.units.by_id.values() if one.spec.text]
        planned.append(sum((unit.state is not State.UNREAD) for unit in of_spec))

    assert planned[0] == 1
    assert ProductEmbedding.objects.filter(embedding__isnull=False).count() == 4


def hidden(act: Callable[[], Any]) -> None:
    with suppress(Exception):
        act()


LOSING: dict[str, Callable[[], Any]] = {
    "told": lambda: run(TERMINATE),
    "hidden": lambda: hidden(lambda: run(TERMINATE)),
}
TERMINATE = "SELECT pg_terminate_backend(pg_backend_pid())"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("act", LOSING.values(), ids=LOSING)
def test_a_row_whose_code_loses_the_connection_each_time_fails_alone(monkeypatch, settings, act):
    monkeypatch.setattr(faults, "FIRST_OUTAGE_SECONDS", 0.001)
    settings.PGEMBED_MAX_ATTEMPTS = 1
    lost = Product.objects.create(title="lost")
    others = [Product.objects.create(title=title) for title in "ab"]
    monkeypatch.setattr(
        Product, "pitch", lambda row: row.title if row.title != "lost" else act() or row.title
    )

    call_command("embed_worker", "--drain", verbosity=0)

    spec = "app.ProductEmbedding"
    failed = Job.objects.filter(spec=spec, status="failed")
    assert failed.values_list("source_pk", "crashes").get() == (str(lost.pk), 0)
    embedded = ProductEmbedding.objects.exclude(embedding=None)
    assert set(embedded.values_list("source_id", flat=True)) == {row.pk for row in others}


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_is_lost_now_and_then_is_no_rows_failure(monkeypatch, settings):
    monkeypatch.setattr(faults, "FIRST_OUTAGE_SECONDS", 0.001)
    settings.PGEMBED_MAX_ATTEMPTS = 1
    Product.objects.create(title="lost twice")
    times = iter([1, 2])
    monkeypatch.setattr(
        Product, "pitch", lambda row: run(TERMINATE) if next(times, 0) else row.title
    )

    call_command("embed_worker", "--drain", verbosity=0)

    charged = Job.objects.filter(spec="app.ProductEmbedding").values_list(*CHARGED)
    assert set(charged) == {("succeeded", 0, 0, "")}


class Refusing(Chunker):
    def split(self, text: str) -> list[Chunk]:
        if "bad" in text:
            sys.exit()
        return super().split(text)


@pytest.mark.django_db
def test_an_estimate_counts_the_rows_that_fail():
    for title in ("good", "bad"):
        Product.objects.create(title=title)
    spec = dataclasses.replace(specs.of(Product, name="ProductTitle")[0], chunker=Refusing())

    [estimate] = Backfill(spec, using="default", where=()).estimates()

    assert (estimate.rows, estimate.errors) == (1, 1)


@pytest.mark.django_db
def test_a_base_manager_that_raises_sets_its_spec_aside(make_worker, monkeypatch):
    class Refusing(models.Manager[Product]):
        def get_queryset(self) -> models.QuerySet[Product]:
            raise RuntimeError("No tenant is active.")

    product, note = Product.objects.create(title="a"), Note.objects.create(body="b")
    worker = make_worker()
    manager = Refusing()
    manager.model = Product
    monkeypatch.setitem(vars(Product._meta), "base_manager", manager)

    while worker.step():
        pass
    with maintenance.apart(specs.of(Product)[0], chore="reconcile", using="default"):
        reconcile_deeply("app.ProductEmbedding")

    found = Job.objects.values_list("source_pk", "status", "attempts").distinct()
    assert set(found) == {(str(product.pk), "pending", 0), (str(note.pk), "succeeded", 0)}
    [told] = {*worker.handler.units.quarantined.values()}
    assert told == (
        "ManagerFailed: The base manager of Product raised RuntimeError: No tenant is active."
    )


CHARGED = ("status", "attempts", "crashes", "last_error")


def assert_that_they_failed_alone(
    ended: dict[str, tuple[str, str]], errors: dict[str, str]
) -> None:
    assert {title: status for title, (status, _) in ended.items()} == {
        title: "failed" if title in errors else "succeeded" for title in ended
    }
    for title, error in errors.items():
        assert error in ended[title][1]
    passages = ProductEmbedding.objects.values_list("passage", flat=True)
    assert {one.partition(" in ")[2] for one in passages} == {f"en-us {settings.TIME_ZONE}"}


@pytest.mark.django_db
def test_in_a_transaction_of_the_caller(work):
    faulty = RAISED | SESSION_CHANGED
    ended = work({title: act for title, (act, _) in faulty.items()} | HARMLESS)

    assert_that_they_failed_alone(ended, {title: told for title, (_, told) in faulty.items()})
    assert Product.objects.get(title="written").price == 7


@pytest.mark.django_db(transaction=True)  # a worker's loop has no transaction open
def test_in_a_workers_loop(work):
    faulty = RAISED | SESSION_CHANGED | OUTSIDE_A_TRANSACTION
    acts = {title: act for title, (act, _) in faulty.items()}
    ended = work(acts | OPENED | CLOSED | HARMLESS)

    errors = {title: told for title, (_, told) in faulty.items()}
    errors |= dict.fromkeys(OPENED, "It left a transaction open.")
    assert_that_they_failed_alone(ended, errors)
    assert Product.objects.get(title="written").price == 7


@pytest.mark.django_db(transaction=True)
def test_what_runs_while_an_instance_is_made():
    faulty = {name: RAISED[name] for name in ("exit", "unspeakable", "unnamed")}
    faulty |= {name: SESSION_CHANGED[name] for name in ("set", "table")}
    rows = [Product.objects.create(title=title) for title in [*faulty, "good"]]
    [spec] = specs.of(Product, name="ProductEmbedding")
    reading = sources.Reading(spec, using="default").ask([str(row.pk) for row in rows])
    before = session()

    def receive(instance: Product, **_: object) -> None:
        if instance.title in faulty:
            faulty[instance.title][0]()

    post_init.connect(receive, sender=Product)
    try:
        loaded = reading()
    finally:
        post_init.disconnect(receive, sender=Product)

    *bad, good = rows
    assert list(loaded.texts) == [str(good.pk)]
    assert set(loaded.errors) == {str(row.pk) for row in bad}
    for row in bad:
        assert faulty[row.title][1] in loaded.errors[str(row.pk)]
    assert session() == before


@pytest.mark.django_db(transaction=True)
def test_a_row_that_ends_the_reconcilers_transaction(run_jobs, monkeypatch):
    """The other rows of its page are compared all the same, in smaller pages."""
    acts: dict[str, Callable[[], Any]] = {}
    monkeypatch.setattr(Product, "pitch", lambda one: acts.get(one.title, str)() or one.title)
    for title in ("a", "close", "commit", "later", "b"):
        Product.objects.create(title=title)
    run_jobs()
    ProductEmbedding.objects.filter(passage="b").update(text_digest=b"stale")
    acts |= {"close": connection.close, "commit": lambda: connection.connection.commit()}
    acts["later"] = lambda: transaction.on_commit(throw(ValueError("after the commit")))
    spec = "app.ProductEmbedding"

    rounds = 0
    while not Job.objects.filter(status="pending", spec=spec).exists() and rounds < 20:
        rounds += 1
        with maintenance.apart(specs.get(spec), chore="reconcile", using="default"):
            reconcile_deeply(spec)

    [job] = Job.objects.filter(status="pending", spec=spec)
    assert job.source_pk == str(Product.objects.get(title="b").pk)
