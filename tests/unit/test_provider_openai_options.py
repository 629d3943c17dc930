"""What OpenAI's provider is told: keys by name only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.core.exceptions import ImproperlyConfigured

from pgembed_django.exceptions import (
    ProviderMisconfigured,
)
from pgembed_django.providers.openai import OpenAIProvider
from tests import played

Make = Callable[..., OpenAIProvider]
KIN = ["openai", "vllm", "tei", "llama.cpp", "lm studio", "litellm"]


@pytest.fixture
def make_provider() -> Iterator[Make]:
    """Return a provider of a played server, which is its ``played``."""
    yield from played.making(OpenAIProvider, played.OpenAI, path="/v1")


def test_a_missing_key_names_the_variable(make_provider: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TEAM_KEY", raising=False)
    provider = make_provider(api_key_env="TEAM_KEY")

    with pytest.raises(ProviderMisconfigured, match="TEAM_KEY"):
        provider.embed_each(["one"])
    assert provider.played.seen == []


def test_openai_itself_needs_a_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    provider = OpenAIProvider(alias="tested", model="text-embedding-3-small", dimensions=1536)

    with pytest.raises(ProviderMisconfigured, match="OPENAI_API_KEY"):
        provider.embed_query("one")


@pytest.mark.parametrize(
    "options",
    [
        {"api_key_env": "sk-proj-0123456789"},
        {"headers": {"Authorization": "Bearer 0123456789"}},
        {"headers": {"api-key": "0123456789"}},
        {"header_envs": {"api-key": "sk-0123456789"}},
        {"base_url": "https://user:0123456789@host/v1"},
        {"base_url": "https://0123456789@host/v1"},
        {"base_url": "https://host/v1?key=0123456789"},
        {"base_url": "https://user:0123456789/v1"},
        {"headers": ["0123456789"]},
        {"api_key_env": "hf_0123456789"},
        {"headers": {"X-Password": "0123456789"}},
        {"headers": {"X-Forwarded": "Bearer 0123456789"}},
        {"headers": {"X-Team": "sk-0123456789"}},
        {"base_url": "0123456789@host/v1"},
        {"base_url": "user:0123456789@host/v1"},
        {"base_url": "http:/user:0123456789@host/v1"},
        {"base_url": b"https://user:0123456789@host/v1"},
        {"base_url": "https://host/v1#0123456789"},
    ],
)
def test_a_secret_in_the_options_is_refused_unseen(options):
    with pytest.raises(ImproperlyConfigured) as raised:
        OpenAIProvider(alias="tested", model="m", dimensions=8, **options)
    assert "0123456789" not in str(raised.value)


def test_a_wrong_encoding_is_told_with_all_there_are():
    with pytest.raises(ImproperlyConfigured, match='"auto", "base64" or "float"'):
        OpenAIProvider(alias="tested", model="m", dimensions=8, encoding_format="hex")


@pytest.mark.parametrize(
    "options",
    [
        {"base_url": "localhost:8080"},
        {"base_url": 8080},
        {"timeout_seconds": 0},
        {"batch_size": 0},
        {"batch_size": True},
        {"too_long": "explode"},
        {"encoding_format": "hex"},
    ],
)
def test_a_wrong_option_is_told_with_its_value(options):
    [(name, value)] = options.items()
    with pytest.raises(ImproperlyConfigured, match=f"{name} is {value!r}"):
        OpenAIProvider(alias="tested", model="m", dimensions=8, **options)


@pytest.mark.parametrize("option", ["document_body", "query_body"])
@pytest.mark.parametrize("field", ["model", "input", "encoding_format", "dimensions"])
def test_a_field_that_is_sent_anyway_is_refused_with_its_value(option: str, field: str):
    with pytest.raises(ImproperlyConfigured, match=f"{option} holds '{field}': 5, which is sent"):
        OpenAIProvider(alias="tested", model="m", dimensions=8, **{option: {"a": 1, field: 5}})


@pytest.mark.parametrize("value", ["", ["query"], 0, [("a", 1)]])
def test_fields_that_are_no_dict_are_refused(value):
    with pytest.raises(ImproperlyConfigured, match="query_body is not a dict"):
        OpenAIProvider(alias="tested", model="m", dimensions=8, query_body=value)


@pytest.mark.parametrize("value", [{"a": object}, {"a": float("nan")}, {(1, 2): 3}])
def test_fields_that_json_cannot_hold_are_refused(value):
    with pytest.raises(ImproperlyConfigured, match=r"query_body is .* Set it to a dict that JSON"):
        OpenAIProvider(alias="tested", model="m", dimensions=8, query_body=value)


@pytest.mark.parametrize("url", ["http://[::1/v1", "http://host:99999/v1", "http://host:port/v1"])
def test_an_address_that_cannot_be_read_is_told_with_the_options_name(url):
    with pytest.raises(ImproperlyConfigured, match="base_url is no URL with a host and perhaps"):
        OpenAIProvider(alias="tested", model="m", dimensions=8, base_url=url)


@pytest.mark.parametrize("options", [{"headers": ["a"]}, {"header_envs": "a"}])
def test_headers_that_are_no_dict_are_told_with_the_options_name(options):
    with pytest.raises(ImproperlyConfigured, match=f"{next(iter(options))} is not a dict"):
        OpenAIProvider(alias="tested", model="m", dimensions=8, **options)


@pytest.mark.parametrize("value", [None, ["a"]])
def test_a_header_that_is_no_string_is_refused_at_once(value):
    with pytest.raises(ImproperlyConfigured, match=f"has {type(value).__name__} for 'X-Team'"):
        OpenAIProvider(alias="tested", model="m", dimensions=8, headers={"X-Team": value})
