"""What ``capture`` may be declared with, and which triggers and constraints it leads to."""

from __future__ import annotations

from typing import Any

import pgtrigger
import pytest
from django.db import models

from pgembed_django import embeddable
from pgembed_django.declaration import specs
from pgembed_django.models import Published
from tests.unit.test_decorator import isolated, make_model, refusal  # noqa: F401

hows = pytest.mark.parametrize("capture", ["wal", "message"])


def declared(**keywords: Any) -> Any:
    model = embeddable(**{"fields": ["title"], **keywords})(make_model())
    [spec] = specs.of(model)
    return spec


def unmanaged() -> type[models.Model]:
    return make_model(title=models.TextField(), meta={"managed": False})


def triggers_on(model: type[models.Model]) -> list[Any]:
    return [trigger for where, trigger in pgtrigger.registered() if where is model]


def published(spec: Any) -> list[Published]:
    return [one for one in spec.embedding_model._meta.constraints if isinstance(one, Published)]


def test_with_triggers_nothing_is_published():
    spec = declared()

    assert not spec.is_read_from_log
    assert len(triggers_on(spec.model)) == 5
    assert published(spec) == []


def test_a_table_that_is_read_from_the_log_has_no_triggers_and_is_published():
    spec = declared(capture="wal")

    assert spec.is_read_from_log
    assert triggers_on(spec.model) == []
    assert [one.with_table for one in published(spec)] == [True]


def test_triggers_that_write_messages_need_a_publication_without_the_table():
    spec = declared(capture="message")

    assert spec.is_read_from_log
    assert {trigger.watch.is_by_message for trigger in triggers_on(spec.model)} == {True}
    assert [one.with_table for one in published(spec)] == [False]


def test_another_capture_is_refused():
    assert "capture is 'log'. Choose 'trigger', 'message' or 'wal'." in refusal(capture="log")


@hows
def test_stale_rows_cannot_be_hidden_as_they_have_no_job_yet(capture):
    told = refusal(capture=capture, stale="hide")

    assert f"stale is 'hide', and capture '{capture}'" in told
    assert "after the commit" in told


def test_a_trigger_level_is_of_no_use_without_triggers():
    assert "trigger_level is 'statement'" in refusal(capture="wal", trigger_level="statement")


def test_a_trigger_for_each_statement_may_write_messages():
    spec = declared(capture="message", trigger_level="statement")

    assert {trigger.watch.is_by_statement for trigger in triggers_on(spec.model)} == {True}


@hows
def test_a_schema_per_tenant_is_refused(settings, capture):
    settings.PGTRIGGER_SCHEMA = None

    assert f"capture is {capture!r}, and PGTRIGGER_SCHEMA None" in refusal(capture=capture)


def test_an_unmanaged_model_may_be_read_from_the_log():
    model = embeddable(fields=["title"], capture="wal")(unmanaged())

    [spec] = specs.of(model)
    assert triggers_on(model) == []
    assert published(spec)


def test_an_unmanaged_model_has_no_triggers_that_could_write_messages():
    assert "capture='wal'" in refusal(unmanaged(), capture="message")


def test_an_unmanaged_model_has_no_related_tables():
    assert "related is ['owner__name']" in refusal(
        unmanaged(), capture="wal", related=["owner__name"]
    )
