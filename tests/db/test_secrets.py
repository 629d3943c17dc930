"""A secret, planted wherever a project may put one, is in nothing that anybody reads."""

from __future__ import annotations

import io
import logging
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pgembed_django import providers, search
from pgembed_django.checks import check_settings
from pgembed_django.contrib.tracing.spans import Spans
from pgembed_django.exceptions import ProviderError
from pgembed_django.models import Job, Space
from pgembed_django.providers import errors
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.testing import run_jobs
from tests import played
from tests.app.models import Note

SECRET = "hunter2"
KEY = f"{SECRET}-of-the-team"
OURS = [model._meta.db_table for model in apps.get_app_config("pgembed").get_models()]
BACKEND = "pgembed_django.providers.openai.OpenAIProvider"


class Custom(DeterministicProvider):
    """A project's own provider, which takes what it likes."""

    def __init__(self, *, client: Any = None, **common: Any) -> None:
        super().__init__(**common)


@pytest.fixture
def server(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[played.OpenAI]:
    settings.PGEMBED_MAX_ATTEMPTS = 1
    monkeypatch.setenv("TEAM_KEY", KEY)
    monkeypatch.setenv("TEAM_PASS", f"Basic user:{SECRET}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://user:{SECRET}@127.0.0.1:9")  # nobody is there
    with played.serving(played.OpenAI(width=8)) as server:
        options = {"api_key_env": "TEAM_KEY", "header_envs": {"X-Team": "TEAM_PASS"}}
        provider = {"BACKEND": BACKEND, "MODEL": "played", "DIMENSIONS": 8}
        settings.PGEMBED_PROVIDERS = {
            "default": {**provider, "OPTIONS": {**options, "base_url": f"{server.url}/v1"}},
            "proxied": {**provider, "OPTIONS": {**options, "base_url": "http://192.0.2.1/v1"}},
        }
        yield server


ECHOES = [
    played.plain(401, f"Incorrect API key provided: {KEY}"),
    played.plain(400, f"cannot read Basic user:{SECRET}"),
    played.plain(400, f"nobody is called user:{SECRET}"),
    played.plain(500, f"upstream https://user:{SECRET}@upstream/v1 failed"),
    played.plain(503, f"token={SECRET}"),
    played.reply({"error": {"message": f"bad key '{KEY}'", "code": KEY}}, 422),
    played.plain(200, f"<html><title>{KEY}</title></html>"),
    played.plain(307, "", Location=f"http://user:{SECRET}@elsewhere/v1?key={SECRET}"),
]


@pytest.mark.django_db
def test_what_servers_and_proxies_echo_is_shown_nowhere(
    server: played.OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    exporter, console = InMemorySpanExporter(), io.StringIO()
    tracer = TracerProvider()
    tracer.add_span_processor(SimpleSpanProcessor(exporter))

    def run(*command: str) -> None:
        try:
            call_command(*command, stdout=console, stderr=console)
        except CommandError as error:
            console.write("".join(traceback.format_exception(error)))

    with caplog.at_level(logging.DEBUG), Spans(tracer):
        for echo in ECHOES:
            server.poison = lambda text, echo=echo: echo
            Note.objects.create(body="wool")
            run_jobs()
            run("embed_probe")
            with suppress(ImproperlyConfigured, ProviderError):
                search(Note.objects.all(), "wool")
    for command in (["embed_status"], ["embed_status", "--json"], ["embed_spaces", "list"]):
        run(*command)

    read = {
        "console": console.getvalue(),
        "log": caplog.text,
        "fields of the log": str([vars(record) for record in caplog.records]),
        "pages": pages(),
        "spans": "".join(span.to_json() for span in exporter.get_finished_spans()),
        "tables": str(rows()),
    }
    assert "192.0.2.1/v1: its proxy: " in read["console"]
    told = {name for name, text in read.items() if errors.HIDDEN in text}
    assert told >= {"console", "log", "pages", "tables"}
    assert [name for name, text in read.items() if SECRET in text] == []


def pages() -> str:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    where = "/admin/pgembed"
    found = [f"{where}/{name}/" for name in ("job", "space", "worker")]
    found += [f"{where}/job/{job.pk}/change/" for job in Job.objects.filter(status="failed")[:3]]
    found += [f"{where}/space/{space.pk}/change/" for space in Space.objects.all()[:1]]
    answers = [client.get(page) for page in [*found, "/metrics"]]
    assert {answer.status_code for answer in answers} == {200}
    return "".join(answer.content.decode() for answer in answers)


def rows() -> list[Any]:
    found = []
    with connection.cursor() as cursor:
        for table in OURS:
            cursor.execute(f"SELECT row_to_json({table})::text FROM {table}")
            found += cursor.fetchall()
    return found


OPENAI = {"BACKEND": BACKEND, "MODEL": "played", "DIMENSIONS": 8}
CUSTOM = {**OPENAI, "BACKEND": f"{__name__}.Custom"}


@pytest.mark.parametrize(
    "setting",
    [
        f"openai://{SECRET}@host",
        [("default", SECRET)],
        {"default": f"openai://{SECRET}@host"},
        {"default": {**OPENAI, "OPTIONS": f"api_key={SECRET}"}},
        {"default": {**OPENAI, "OPTIONS": {"api_key": SECRET}}},
        {"default": {**OPENAI, "OPTIONS": {"base_url": f"{SECRET}@host"}}},
        {"default": {**OPENAI, "OPTIONS": {"headers": {"X-Team": f"Bearer {SECRET}"}}}},
        {"default": {**OPENAI, "OPTIONS": {"headers": [("Authorization", SECRET)]}}},
        {"default": {**CUSTOM, "OPTIONS": {"client": {"api_key": SECRET}}}},
        {"default": {**CUSTOM, "OPTIONS": {"client": {"password": SECRET}}}},
        {"default": {**CUSTOM, "OPTIONS": {"client": f"https://user:{SECRET}@host"}}},
        {"default": {**CUSTOM, "OPTIONS": {"client": {"secret_key": SECRET}}}},
        {"default": {**CUSTOM, "OPTIONS": {"client": f"https://{SECRET}@host"}}},
        {"default": {**CUSTOM, "OPTIONS": {"client": {SECRET}}}},
    ],
)
def test_a_secret_in_the_settings_is_refused_unseen(settings: Any, setting: Any) -> None:
    settings.PGEMBED_PROVIDERS = setting

    [message] = check_settings()

    assert message.id == "pgembed.E003"
    assert SECRET not in f"{message.msg} {message.hint}"
    with pytest.raises(ImproperlyConfigured):
        providers.get("default")
