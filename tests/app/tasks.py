"""Tasks of the tests' app."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import connection, transaction

from pgembed_django.tasks import task
from pgembed_django.tasks.api import django_task
from tests.app.models import Note


@task()
def add(a: int, b: int) -> int:
    """Return a sum."""
    return a + b


@task()
def note(body: str) -> None:
    """Write a note."""
    Note.objects.create(body=body)


HELD_UP = 1852
"""The key of the lock that holds up ``note_and_wait``."""


@task()
def note_and_wait(body: str) -> None:
    """Write a note, and end no sooner than a lock is free."""
    Note.objects.create(body=body)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [HELD_UP])


@task()
def fail(message: str) -> None:
    """Fail."""
    raise ValueError(message)


@task()
def fail_silently() -> None:
    """Fail without a message."""
    raise ValueError


@task(takes_context=True)
def note_once(context: Any, body: str) -> None:
    """Write a note, and complete with it."""
    with context.completing():
        Note.objects.create(body=body)


@task(tenant="{tenant}", once="{request}", takes_context=True)
def remember(context: Any, tenant: str, request: str) -> None:
    """Write a note for a tenant, once for a request."""
    with context.completing():
        Note.objects.create(body=f"{tenant} {request}")


@task(coalesce="report:{account}", bump="replace")
def report(account: int, text: str) -> None:
    """Write the latest text of an account."""
    Note.objects.create(body=f"{account} {text}")


@task(serial="{account}")
def one_at_a_time(account: int) -> None:
    """Run beside no other one of its account."""


@django_task
def plain(*args: Any, **kwargs: Any) -> int:
    """Return how many arguments there were: declared by Django's own decorator."""
    return len(args) + len(kwargs)


@django_task
async def plain_async(number: int) -> int:
    """Return a number, on an event loop."""
    return number


@task(keep_results=timedelta(days=1))
def add_and_keep(a: int, b: int) -> int:
    """Return a sum that is kept."""
    return a + b


@task(tenant="{tenant}", once="{tenant}:{request}", serial="{account}")
def keyed(
    tenant: str | None = None, request: str | None = None, account: int | None = None
) -> None:
    """Have all keys that are of something."""


@task(attempts=1)
def fail_at_once(message: str) -> None:
    """Fail for good."""
    raise ValueError(message)


@task(keep_results=timedelta(days=1))
def keep_a_set() -> set[int]:
    """Return what JSON has no form for."""
    return {1}


@task(coalesce="digest:{account}", bump="latest", max_wait=60)
def digest(account: int, text: str) -> None:
    """Write an account's text when it has been quiet for a while, or after a minute."""
    Note.objects.create(body=f"{account} {text}")


@task(coalesce="first:{account}")
def first_text(account: int, text: str) -> None:
    """Write the first text of an account."""
    Note.objects.create(body=f"{account} {text}")


@task()
def note_later(body: str) -> None:
    """Let another task write a note."""
    note.enqueue(body)


ANSWERS: list[Exception | None] = []
"""What the provider answers next. Nothing: it is up."""


@task(queue_name="llm", provider="chat")
def ask(question: str) -> None:
    """Ask a provider."""
    if ANSWERS and (error := ANSWERS.pop(0)):
        raise error


# Runs


seen: list[Any] = []
"""What tasks have noted, in tests that run them in the same process."""


@task(takes_context=True, attempts=2, backoff=0)
def behave(context: Any, how: str) -> str:
    """Complete and end in one of many ways."""
    if how == "late error":
        with context.completing():
            Note.objects.create(body=how)
        raise ValueError(how)
    if how == "error inside":
        with context.completing():
            Note.objects.create(body=how)
            raise ValueError(how)
    if how == "exit":
        raise SystemExit(3)
    if how == "again":
        if context.attempt and not seen:
            seen.append(context.key)
            context.retry(in_seconds=0)
        seen.append(context.key)
    if how.startswith("again in ") and not seen:
        seen.append(how)
        context.retry(in_seconds=float(how.removeprefix("again in ")))
    if how == "secret":
        raise ValueError("Authorization: Bearer abcdef0123456789")
    if how == "long":
        deep(40, "x" * 5000)
    if how == "nested":
        with transaction.atomic(), context.completing():
            Note.objects.create(body=how)
    return f"returned {how}"


@task(takes_context=True, keep_results=timedelta(days=1))
def twice(context: Any) -> str:
    """Complete twice."""
    with context.completing(result="first"):
        Note.objects.create(body="first")
    with context.completing(result="second"):
        Note.objects.create(body="second")
    return "third"


def deep(depth: int, message: str) -> None:
    """Fail far below."""
    if depth % 2:
        return deep(depth - 1, message)
    if depth:
        deep(depth - 1, message)
    raise LookupError(message)


@task(give_up_on=(ValueError,), backoff=0)
def give_up(kind: str) -> None:
    """Fail with one that is worth another try, or not."""
    raise {"value": ValueError, "key": KeyError}[kind](kind)


@task(retry_on=(KeyError,), backoff=0)
def retry_keys(kind: str) -> None:
    """Fail with one that is worth another try, or not."""
    raise {"value": ValueError, "key": KeyError}[kind](kind)


@task(takes_context=True)
def wait_for(context: Any, path: str) -> None:
    """Say that it has begun, wait for a file, and complete with a note."""
    began = Path(path + f".{context.key}.began")
    began.write_text(str(os.getpid()))
    while not Path(path).exists():
        context.check()
        time.sleep(0.01)
    with context.completing():
        Note.objects.create(body=context.key)


@task(takes_context=True, timeout=0.3, attempts=2, backoff=0)
def hang(context: Any, path: str) -> None:
    """Wait for a file without looking at anything else, and complete late."""
    while not Path(path).exists():
        time.sleep(0.01)
    with context.completing():
        Note.objects.create(body="late")


@task(timeout=0.3, attempts=1)
async def ahang() -> None:
    """Wait for ever, and note how that ends."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        seen.append("canceled")
        raise


@task(takes_context=True)
async def anote(context: Any, body: str) -> None:
    """Write a note by the async ORM, and complete with it."""
    async with context.acompleting():
        await Note.objects.acreate(body=body)


@task()
async def meet(count: int) -> None:
    """Wait until so many of these run at once."""
    seen.append("came")
    while seen.count("came") < count:
        await asyncio.sleep(0.005)


@task(attempts=1)
async def leave_loop(how: str) -> None:
    """End the event loop, or try to."""

    async def leave() -> None:
        sys.exit(how)

    if how == "stop":
        asyncio.get_running_loop().stop()
    else:
        await asyncio.gather(leave())


@task()
def end_helpers() -> None:
    """Start a program and a process, end both, and note how they have ended."""
    program = subprocess.Popen(["sleep", "3600"])
    program.terminate()
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
    process.start()
    process.terminate()
    process.join()
    Note.objects.create(body=f"{program.wait()} {process.exitcode}")


@task(timeout=0.3, attempts=1)
def leave_helpers(path: str) -> None:
    """Start a program and a process that outlive this one, and wait for a file as they do."""
    os.system(f"while [ ! -e '{path}' ]; do sleep 0.1; done &")
    is_forked = os.fork() == 0
    while not Path(path).exists():
        time.sleep(0.01)
    if is_forked:
        os._exit(0)


@task(tenant="{tenant}", takes_context=True)
def note_of_tenant(context: Any, tenant: str, body: str) -> None:
    """Write a row that policies or schemas keep apart by tenant."""
    with context.completing(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO tenant_note (body) VALUES (%s)", [body])
        cursor.execute("SELECT count(*) FROM tenant_note")
        seen.append((tenant, cursor.fetchone()[0]))


@task(takes_context=True)
def die(context: Any, path: str) -> None:
    """Kill the process that runs it."""
    with Path(path).open("a") as file:
        file.write(f"{context.attempt}\n")
    os.kill(os.getpid(), signal.SIGKILL)


@task()
def show_session() -> None:
    """Note the settings of the database session."""
    with connection.cursor() as cursor:
        for name in ("row_security", "lock_timeout", "idle_in_transaction_session_timeout"):
            cursor.execute("SELECT current_setting(%s)", [name])
            seen.append(cursor.fetchone()[0])


@contextmanager
def as_tenant(tenant: str) -> Iterator[None]:
    """Let policies see one tenant's rows."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('app.tenant', %s, false)", [tenant])
        try:
            yield
        finally:
            cursor.execute("SELECT set_config('app.tenant', '', false)")


@contextmanager
def in_schema(tenant: str) -> Iterator[None]:
    """Look for tables in the tenant's schema alone."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('search_path', %s, false)", [f"tenant_{tenant}"])
        try:
            yield
        finally:
            cursor.execute("RESET search_path")


@task(takes_context=True, attempts=2, backoff=0)
def note_slowly(context: Any, body: str) -> None:
    """Write a note, and take some time until it is committed."""
    with context.completing():
        Note.objects.create(body=body)
        time.sleep(0.05)


@task(coalesce="{key}", bump="replace")
def fail_superseded(key: str, text: str) -> None:
    """Fail after another call of the key has come, at first."""
    seen.append(text)
    if text == "old":
        fail_superseded.enqueue(key, "new")
        raise ValueError(text)


@task(takes_context=True)
def run_twice(context: Any, path: str) -> None:
    """Ask for another run, and write a note in that one."""
    if not Path(path).exists():
        Path(path).touch()
        context.retry(in_seconds=0)
    Note.objects.create(body="second run")


class OddError(Exception):
    """An error that cannot be made again of its arguments."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")


@task(backoff=0)
def fail_oddly(path: str) -> None:
    """Fail the first time."""
    if not Path(path).exists():
        Path(path).touch()
        raise OddError("here", "because")
