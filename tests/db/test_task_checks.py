"""What the system checks tell of TASKS."""

from __future__ import annotations

import pytest
from django.core.checks import WARNING, run_checks
from django.db import connection

from pgembed_django.checks import check_databases
from pgembed_django.tasks import api, limits

PATH = "pgembed_django.tasks.PostgresBackend"


def messages(settings, **entry):
    settings.TASKS = {"default": {"BACKEND": PATH, **entry}}
    return api.task_backends["default"].check()


def test_the_settings_of_the_tests_are_right():
    assert api.task_backends["default"].check() == []


def test_limits_and_a_tenants_context_are_right(settings):
    options = {
        "limits": {"llm": dict.fromkeys(limits.NAMES, 1)},
        "tenant_context": "contextlib.nullcontext",
    }
    assert messages(settings, QUEUES=["llm"], OPTIONS=options) == []


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"QUEUES": []}, "QUEUES is empty"),
        ({"QUEUES": ["a.b"]}, "no dot"),
        ({"OPTIONS": {"limit": {}}}, "'limit', which is unknown. Did you mean 'limits'?"),
        ({"OPTIONS": {"limits": []}}, "Give a dict of each queue"),
        ({"OPTIONS": {"limits": {"defaults": {}}}}, "Add it to QUEUES"),
        ({"OPTIONS": {"limits": {"default": 3}}}, "Give a dict with: concurrency"),
        ({"OPTIONS": {"limits": {"default": {"per_hour": 3}}}}, "'per_hour'. Choose from"),
        ({"OPTIONS": {"limits": {"default": {"concurrency": 0}}}}, "whole number from 1 on"),
        ({"OPTIONS": {"limits": {"default": {"per_minute": True}}}}, "is True"),
        ({"OPTIONS": {"tenant_context": "no.such"}}, "tenant_context"),
        ({"OPTIONS": {"tenant_context": 3}}, "is 3"),
    ],
)
def test_a_wrong_entry_is_named_with_its_value(settings, entry, said):
    [message] = messages(settings, **entry)
    assert message.id == "pgembed.E026"
    assert said in message.msg


def test_an_app_that_is_not_installed_is_named(settings):
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "pgembed_django"]
    [message] = api.task_backends["default"].check()
    assert message.id == "pgembed.E024"


def test_another_database_is_named(settings, monkeypatch):
    monkeypatch.setattr(connection, "vendor", "sqlite")
    [message] = api.task_backends["default"].check()
    assert message.id == "pgembed.E025"
    assert "'default'" in message.msg


def test_djangos_check_of_tasks_tells(settings):
    settings.TASKS = {"default": {"BACKEND": PATH, "OPTIONS": {"limit": 3}}}
    assert "pgembed.E026" in [message.id for message in run_checks()]


@pytest.mark.django_db
def test_tables_that_are_missing_are_a_warning_as_migrate_checks_first():
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgembed_task RENAME TO gone")
    [message] = check_databases(databases=["default"])
    assert (message.id, message.level) == ("pgembed.W017", WARNING)
    assert "migrate pgembed --database default" in message.hint
