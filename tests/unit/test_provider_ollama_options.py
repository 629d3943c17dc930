"""What Ollama's provider is told, and what it tells of its model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.core.exceptions import ImproperlyConfigured

from pgembed_django.exceptions import ModelMissing, ProviderUnavailable
from pgembed_django.providers import ollama
from pgembed_django.providers.ollama import OllamaProvider
from tests import played

Make = Callable[..., OllamaProvider]


@pytest.fixture
def make_provider() -> Iterator[Make]:
    """Return a provider of a played server, which is its ``played``."""
    yield from played.making(OllamaProvider, played.Ollama)


def test_a_digest_is_read_and_a_pulled_tag_is_a_new_model(make_provider: Make):
    clock = played.Clock()
    provider = make_provider(clock=clock)
    before = provider.identity()

    provider.played.models["played:latest"] = "sha-two"
    clock.now += ollama.DIGEST_SECONDS

    assert before["digest"] == "sha-one"
    assert provider.identity()["digest"] == "sha-two"


def test_a_digest_can_be_left_out(make_provider: Make):
    provider = make_provider(use_digest=False)
    assert provider.identity()["digest"] is None
    assert provider.played.seen == []


def test_no_outage_is_taken_for_a_model_without_a_digest():
    unreachable = OllamaProvider(
        alias="down", model="played", dimensions=16, base_url="http://127.0.0.1:9"
    )

    with pytest.raises(ProviderUnavailable, match="refused"):
        unreachable.identity()


@pytest.mark.parametrize(
    ("value", "url"),
    [
        (None, "http://127.0.0.1:11434"),
        ("", "http://127.0.0.1:11434"),
        ("example.com", "http://example.com:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        (":8080", "http://127.0.0.1:8080"),
        ("::", "http://[::1]:11434"),
        ("::1", "http://[::1]:11434"),
        ("[::1]", "http://[::1]:11434"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("ollama.com", "https://ollama.com:443"),
        ("http://example.com", "http://example.com:80"),
        ("https://example.com", "https://example.com:443"),
        ("https://h:8443/ollama", "https://h:8443/ollama"),
        ("http://h:11434/v1/", "http://h:11434/v1"),
        ("example.com:66000", "http://example.com:11434"),
        (":abc", "http://127.0.0.1:11434"),
        (' "localhost:11434" ', "http://localhost:11434"),
    ],
)
def test_ollama_host_is_read_in_all_its_forms(value: str | None, url: str):
    assert ollama.base_url_of(value) == url


def test_an_address_that_is_none_is_told_with_the_options_name():
    for wrong, told in ((5, "base_url is 5"), ("http://:bad:1", "base_url is no URL")):
        with pytest.raises(ImproperlyConfigured, match=told):
            OllamaProvider(alias="tested", model="m", dimensions=8, base_url=wrong)


def test_the_environment_names_the_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OLLAMA_HOST", "elsewhere:1234")
    provider = OllamaProvider(alias="tested", model="m", dimensions=8)
    assert provider.base_url == "http://elsewhere:1234"


@pytest.mark.parametrize(
    ("given", "sent"),
    [("300", 300), ("-1", -1), ("1.5", 1.5), (0, 0), ("5m", "5m"), ("1h30m", "1h30m")],
)
def test_keep_alive_is_sent_as_ollama_takes_it(given, sent):
    provider = OllamaProvider(alias="tested", model="m", dimensions=8, keep_alive=given)
    assert provider._constant["keep_alive"] == sent


@pytest.mark.parametrize("given", ["1d", "", "5 m", True])
def test_a_keep_alive_that_ollama_refuses_is_told_at_once(given):
    with pytest.raises(ImproperlyConfigured, match="keep_alive"):
        OllamaProvider(alias="tested", model="m", dimensions=8, keep_alive=given)


def test_a_model_that_is_not_listed_is_not_pulled(make_provider: Make):
    provider = make_provider(model="elsewhere/bge-m3:567m")
    with pytest.raises(ModelMissing, match="ollama pull elsewhere/bge-m3:567m"):
        provider.identity()


def test_a_hidden_list_of_models_is_no_digest_but_a_known_one_is_not_forgotten(
    make_provider: Make,
):
    clock = played.Clock()
    server = played.Ollama()
    shown, server.other = server.other, lambda seen: played.NO_ROUTE
    provider = make_provider(server, clock=clock)

    assert provider.identity()["digest"] is None
    server.other = shown
    clock.now += ollama.DIGEST_SECONDS
    assert provider.identity()["digest"] == "sha-one"
    server.other = lambda seen: played.NO_ROUTE
    clock.now += ollama.DIGEST_SECONDS
    with pytest.raises(ProviderUnavailable, match="404"):
        provider.identity()
