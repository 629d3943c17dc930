"""Specs of the test models whose changes are read from the write-ahead log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from pgembed_django.capture import Streamer, slots
from pgembed_django.capture.pgoutput import Parsed, parse
from pgembed_django.core import database
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Published, ReplicationSlot
from pgembed_django.spaces import reconcile
from pgembed_django.triggers import triggers
from tests.unit import pgoutput_writer

PEEK = """
    SELECT data
    FROM pg_logical_slot_peek_binary_changes(
        %(slot)s, NULL, NULL,
        'proto_version', '1', 'publication_names', 'pgembed', 'messages', 'true'
    )
"""


def watch(spec: Any) -> Any:
    import pgtrigger

    return next(
        trigger.watch
        for model, trigger in pgtrigger.registered()
        if model is spec.model and trigger.watch.key == spec.key
    )


@pytest.fixture
def capture(monkeypatch) -> Iterator[Callable[..., Any]]:
    """Declare a model's spec with another capture, and do what its migration would."""
    undo: list[Callable[[], Any]] = []

    def declare(model: Any, how: str) -> Any:
        [spec] = specs.of(model)
        changed = dataclasses.replace(spec, capture=how)
        monkeypatch.setitem(specs._registry, spec.key, changed)
        constraint = Published(name="published", with_table=how == "wal")
        ours = list(triggers(watch(spec)))
        by_message = list(triggers(dataclasses.replace(watch(spec), is_by_message=True)))
        with connection.schema_editor() as editor:
            editor.execute(constraint.create_sql(spec.embedding_model, editor), params=None)
        for one in ours:
            one.uninstall(model)
        if how == "message":
            for one in by_message:
                one.install(model)

        def restore() -> None:
            for one in ours:
                one.uninstall(model)
                one.install(model)
            with connection.schema_editor() as editor:
                if removed := constraint.remove_sql(spec.embedding_model, editor):
                    editor.execute(removed)

        undo.append(restore)
        return changed

    yield declare
    for one in undo:
        one()
    seen = slots.look(using="default")
    if seen.is_there:
        slots.drop(seen.name, using="default")
    with connection.cursor() as cursor:
        cursor.execute("DROP PUBLICATION IF EXISTS pgembed")
    ReplicationSlot.objects.all().delete()


def catch_up() -> None:
    """Read what is committed by now, as a drain does."""
    Streamer(using="default").catch_up()


def units(spec: Any) -> list[str]:
    """Return the keys of a spec's pending jobs."""
    pending = Job.objects.filter(spec=spec.key, status="pending")
    return sorted(pending.values_list("source_pk", flat=True))


def unread() -> list[Parsed]:
    """Return what the slot has that is not confirmed yet, and leave it there."""
    found = database.rows("default", PEEK, slot=slots.look(using="default").name)
    pieces = [parse(memoryview(pgoutput_writer.piece(bytes(data)))) for [data] in found]
    return [one for one in pieces if one is not None]


def is_compared(spec: Any) -> bool:
    """Return whether all rows are about to be compared, and let that be done."""
    scans = reconcile.under_way([spec], using="default").get(spec, [])
    reconcile.ScanCursor.objects.filter(spec=spec.key).update(
        cursor=None, finished_recipe=spec.recipe
    )
    return set(reconcile.ALL_SCANS) <= set(scans)
