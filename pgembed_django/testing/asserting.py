"""Assert that a row's embeddings are pending or fresh, or that a task is enqueued.

A failure's message tells what there is instead.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import DEFAULT_DB_ALIAS, router
from django.db.models import Model, TextField
from django.db.models.functions import Cast

from pgembed_django import sources, spaces, store
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import Job, Ripple, Task
from pgembed_django.spaces.ripples import UNIT

MAX_TOLD = 10
"""How many tasks that are enqueued a message tells of."""


def assert_embedding_pending(
    instance: Model, *, name: str | None = None, using: str | None = None
) -> None:
    """Assert that the row has a pending or running job, or is enqueued: it gets new vectors.

    ``name`` chooses one of several ``@embeddable`` of the model; all of them, unless given.

    Raises:
        AssertionError: there is none. The message says what there is instead.
        ImproperlyConfigured: the model is not embeddable, or has no spec of that name.
    """
    for unit in _units(instance, name, using):
        if not unit.is_pending:
            raise AssertionError(f"{unit.name}: no job is pending. {unit.described}")


def assert_fresh(instance: Model, *, name: str | None = None, using: str | None = None) -> None:
    """Assert that the row's vectors are those of its present text in the database.

    ``name`` chooses one of several ``@embeddable`` of the model; all of them, unless given.

    Raises:
        AssertionError: its vectors are missing, or those of another text. The message says
            what there is instead.
        ImproperlyConfigured: the model is not embeddable, or has no spec of that name.
    """
    for unit in _units(instance, name, using):
        if not unit.is_fresh:
            raise AssertionError(f"{unit.name}: its vectors are not fresh. {unit.described}")


def assert_enqueued(task: Any, *args: Any, **kwargs: Any) -> None:
    """Assert that a call of the task is pending or running, with these arguments.

    They may be given by position or name, however they were enqueued. Those that are left out may
    have any value: ``assert_enqueued(report)`` asks for any call.

    Raises:
        AssertionError: there is none. The message says which calls there are instead.
        TypeError: the function does not take these arguments.
    """
    signature = inspect.signature(task.func)
    if task.takes_context:
        [_, *parameters] = signature.parameters.values()
        signature = signature.replace(parameters=parameters)
    # As they come back from the database: tuples are lists there.
    wanted = json.loads(json.dumps(signature.bind_partial(*args, **kwargs).arguments))
    unfinished = Task.objects.using(router.db_for_write(Task)).filter(
        status__in=[Task.Status.PENDING, Task.Status.RUNNING]
    )
    calls = []
    for row in unfinished.filter(function=task.module_path).order_by("pk"):
        try:
            given = signature.bind(
                *row.arguments.get("args", []), **row.arguments.get("kwargs", {})
            )
        except TypeError:  # enqueued from SQL, or by other code
            calls.append(f"with {row.arguments} ({row.status})")
            continue
        given.apply_defaults()
        if all(given.arguments.get(name) == value for name, value in wanted.items()):
            return
        calls.append(f"{_call(task, given.arguments)} ({row.status})")
    others = unfinished.exclude(function=task.module_path).order_by("pk")
    calls += [f"{row.function} ({row.status})" for row in others[:MAX_TOLD]]
    there = "; ".join(calls[:MAX_TOLD]) or "nothing"
    raise AssertionError(f"{_call(task, wanted)} is not enqueued. There is: {there}.")


def _call(task: Any, arguments: Mapping[str, Any]) -> str:
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return f"{task.name}({given})"


@dataclass(frozen=True, slots=True)
class _Unit:
    """A row in the view of one spec. ``described``: its state, with a remedy if one is known."""

    name: str
    is_pending: bool
    is_fresh: bool
    described: str


def _units(instance: Model, name: str | None, using: str | None) -> Iterator[_Unit]:
    if not isinstance(instance, Model):
        raise TypeError(f"{instance!r} is not a row. Give an instance of an embeddable model.")
    alias = using or instance._state.db or DEFAULT_DB_ALIAS
    for spec in specs.of(instance.__class__, name=name):
        yield _unit(spec, instance, using=alias)


def _unit(spec: Spec, instance: Model, *, using: str) -> _Unit:
    rows = spec.model._base_manager.using(using).filter(pk=instance.pk).order_by()
    # Jobs have the key as Postgres prints it.
    key = rows.values_list(Cast("pk", TextField()), flat=True).first()
    source_pk = str(instance.pk) if key is None else key
    loaded = sources.load(spec, [] if key is None else [source_pk], using=using)
    text, error = loaded.texts.get(source_pk), loaded.errors.get(source_pk)
    space = spaces.active(spec, using=using)
    stored = store.ask_stored(spec, [source_pk], [space.pk] if space else [], using=using)()
    chunks = [chunk for of_unit in stored.chunks.values() for chunk in of_unit]
    lacking = sum(not chunk.is_done for chunk in chunks)
    digest = None if text is None else spec.text_digest(text)
    is_of_this_text = bool(chunks) and all(chunk.text_digest == digest for chunk in chunks)
    found = Job.objects.using(using).filter(spec=spec.key, source_pk=source_pk, settled_at=None)
    jobs = list(found.exclude(status=Job.Status.SUCCEEDED).order_by("pk"))
    ripples = Ripple.objects.using(using).filter(spec=spec.key)
    is_pending = any(job.status in (Job.Status.PENDING, Job.Status.RUNNING) for job in jobs)
    is_pending |= ripples.filter(path=UNIT, key=source_pk).exists()

    said = []
    if key is None:
        said.append(f"There is no such row in the database {using!r}: was it saved there?")
    elif error:
        said.append(f"Its text cannot be made: {error}.")
    elif text is None:
        said.append(f"The row is outside of the spec's condition, when={spec.when}.")
    count = f"{len(chunks)} chunk{'s' * (len(chunks) != 1)}"
    if space is None:
        said.append("There is no space yet: no worker has run here. Call run_jobs().")
    elif not chunks:
        said.append("Nothing is stored of it.")
    elif not is_of_this_text:
        said.append(f"Stored: {count} of another text than the row has now.")
    else:
        vectors = f", {lacking} without a vector" if lacking else ", with vectors"
        said.append(f"Stored: {count} of the row's text{vectors}.")
    for job in jobs:
        last = f", last error: {job.last_error}" if job.last_error else ""
        said.append(f"A job is {job.status} (attempts: {job.attempts}{last}).")
    if ripples.exists():
        said.append("run_jobs() has yet to find the rows whose related rows have changed.")
    if is_pending:
        said.append("run_jobs() runs what is due and not backing off.")
    elif not jobs:
        watched = ", ".join([*spec.fields, *spec.related])
        said.append(
            f"There is no job. One comes when a row is inserted or one of {watched} changes, "
            "unless the triggers are off."
        )
    return _Unit(
        name=f"{spec.model.__name__} {source_pk} ({spec.key})",
        is_pending=is_pending,
        is_fresh=is_of_this_text and not lacking,
        described=" ".join(said),
    )
