"""Specs of the test models whose changes are read from the write-ahead log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from pgembed_django.capture import slots
from pgembed_django.declaration import specs
from pgembed_django.models import Published, ReplicationSlot
from pgembed_django.triggers import triggers


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
