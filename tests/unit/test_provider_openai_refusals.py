"""Whose fault it is when OpenAI's kin refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pgembed_django.exceptions import (
    InputRefused,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from pgembed_django.providers.base import Embedded
from pgembed_django.providers.openai import OpenAIProvider
from tests import played

Make = Callable[..., OpenAIProvider]
KIN = ["openai", "vllm", "tei", "llama.cpp", "lm studio", "litellm"]


@pytest.fixture
def make_provider() -> Iterator[Make]:
    """Return a provider of a played server, which is its ``played``."""
    yield from played.making(OpenAIProvider, played.OpenAI, path="/v1")


DAY = "Wed, 21 Oct 2015"
OUTAGES = [
    (429, {"Retry-After": "17"}, 17),
    (503, {"Retry-After": f"{DAY} 07:28:30 GMT", "Date": f"{DAY} 07:28:00 GMT"}, 30),
    (429, {"retry-after-ms": "1500"}, 1.5),
    (
        429,
        {
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "1m30s",
            "x-ratelimit-remaining-tokens": "100",
            "x-ratelimit-reset-tokens": "6m0s",
        },
        90,
    ),
    (503, {"Retry-After": "999999"}, 600),
    (502, {}, None),
    (503, {"Retry-After": "soon"}, None),
]


@pytest.mark.parametrize(("status", "headers", "seconds"), OUTAGES)
def test_a_server_is_left_alone_as_long_as_it_asks(make_provider: Make, status, headers, seconds):
    clock = played.Clock()
    provider = make_provider(clock=clock)
    error = {"error": {"message": "slow down", "type": "requests"}}
    fault = played.reply(error, status)
    fault.headers.update(headers)
    provider.played.faults.append(fault)

    with pytest.raises(ProviderUnavailable) as raised:
        provider.embed_each(["one"])
    assert raised.value.retry_after_seconds == seconds

    if seconds:
        with pytest.raises(ProviderUnavailable, match="asked to wait"):
            provider.embed_query("two")
        assert len(provider.played.asked) == 1
    clock.now += seconds or 0
    assert isinstance(provider.embed_each(["one"])[0], Embedded)


def test_a_spent_limit_is_heeded_before_the_server_refuses(make_provider: Make):
    provider = make_provider(batch_size=1)
    last = provider.played.embed(
        played.Seen("POST", "/v1/embeddings", {}, {"input": ["one"], "model": "played"}, ("", 0))
    )
    last.headers.update(
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20s"}
    )
    provider.played.faults.append(last)

    first, second = provider.embed_each(["one", "two"])

    assert isinstance(first, Embedded)
    assert isinstance(second, ProviderUnavailable)
    assert second.retry_after_seconds == pytest.approx(20, abs=1)
    assert len(provider.played.asked) == 1


CONFIGURATION = [
    (401, {"error": {"message": "Incorrect API key provided: sk-proj-abcdefghijk"}}),
    (403, {"detail": "Not authenticated"}),
    (429, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}),
    (404, {"detail": "Not Found"}),
    (405, {"detail": "Method Not Allowed"}),
    (501, {"error": {"message": "This server does not support embeddings"}}),
    (200, {"error": "Unexpected endpoint or method. (POST /embeddings)"}),
    (400, {"error": {"message": "No models loaded. Please load a model"}}),
]


@pytest.mark.parametrize(("status", "body"), CONFIGURATION)
def test_what_a_person_must_mend_charges_no_text(make_provider: Make, status, body):
    provider = make_provider()
    provider.played.faults.append(played.reply(body, status))

    with pytest.raises(ProviderMisconfigured) as raised:
        provider.embed_each(["one", "two"])
    assert "sk-proj" not in str(raised.value)


@pytest.mark.parametrize(("status", "body"), CONFIGURATION)
def test_what_looks_like_a_wrong_key_at_a_server_that_is_back_is_about_a_text(
    make_provider: Make, status, body
):
    provider = make_provider()
    provider.played.poison = lambda text: played.reply(body, status) if "<script>" in text else None

    outcomes = provider.embed_each(
        ["one", "two", "<script>", "four"], suspected=ProviderMisconfigured
    )

    assert [isinstance(outcome, Embedded) for outcome in outcomes] == [True, True, False, True]
    assert type(outcomes[2]) is ProviderError
    assert f"answered {status}" in str(outcomes[2])
    assert "sk-proj" not in str(outcomes[2])


def test_a_key_that_is_wrong_after_all_charges_no_text(make_provider: Make):
    provider = make_provider()
    provider.played.poison = lambda text: played.plain(401, "no")

    with pytest.raises(ProviderMisconfigured, match="answered 401"):
        provider.embed_each(["one", "two"], suspected=ProviderMisconfigured)
    assert len(provider.played.asked) == 2  # and a health check


def test_a_key_that_was_never_given_is_asked_for(make_provider: Make):
    provider = make_provider()
    provider.played.poison = lambda text: played.plain(401, "You didn't provide an API key.")

    with pytest.raises(ProviderMisconfigured, match=r"API key\. No key was sent: set api_key_env"):
        provider.embed_documents(["one"])


@pytest.mark.parametrize("path", ["", "/v1"])
def test_an_address_that_lacks_its_usual_end_is_told(make_provider: Make, path: str):
    served = make_provider()
    served.played.poison = lambda text: played.NO_ROUTE
    provider = make_provider(base_url=served.base_url.removesuffix("/v1") + path)

    with pytest.raises(ProviderMisconfigured, match=r"Is base_url right\?") as raised:
        provider.embed_documents(["one"])

    said = "are asked without the /v1." if path else "It usually ends in /v1."
    assert said in str(raised.value)


def test_another_api_of_the_same_server_is_told_from_a_broken_answer(make_provider: Make):
    served = make_provider()
    provider = make_provider(base_url=served.base_url.removesuffix("/v1"))
    # As llama.cpp answers to /embeddings.
    answer = played.reply([{"index": 0, "embedding": [[0.5] * 16]}])
    served.played.other = lambda seen: answer

    with pytest.raises(ProviderMisconfigured, match=r"a bare list, .* It usually ends in /v1\."):
        provider.embed_each(["one", "two"])
    assert len(served.played.seen) == 1


def test_a_refusal_of_everything_is_the_configurations_fault(make_provider: Make):
    provider = make_provider()
    refusal = played.reply({"error": {"message": "I take no strings"}}, 400)
    provider.played.poison = lambda text: refusal

    with pytest.raises(ProviderMisconfigured, match=r"Even the health check is refused.*strings"):
        provider.embed_each(["one", "two", "three"])
    assert len(provider.played.asked) == 2


def test_a_refused_text_fails_alone(make_provider: Make):
    provider = make_provider()
    refusal = played.reply({"error": {"message": "that is not nice"}}, 400)
    provider.played.poison = lambda text: refusal if "rude" in text else None

    nice, rude, kind = provider.embed_each(["nice", "rude", "kind"])

    assert isinstance(nice, Embedded)
    assert isinstance(rude, InputRefused)
    assert isinstance(kind, Embedded)


def test_an_error_quotes_neither_the_text_nor_a_key(
    make_provider: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TEAM_KEY", "unguessable")
    provider = make_provider(api_key_env="TEAM_KEY", document_prefix="passage: ")
    text = "a private diary of several words"
    said = f"bad request with key unguessable and Bearer abcdef123 for input 'passage: {text}'"
    provider.played.poison = lambda sent: (
        played.reply({"detail": [{"msg": said, "input": text}]}, 422) if text in sent else None
    )

    [refused] = provider.embed_each([text])

    assert isinstance(refused, InputRefused)
    for secret in ("unguessable", "abcdef123", "diary", "words"):
        assert secret not in str(refused)


@pytest.mark.parametrize("text", ["Anna", "my private diary of last summer"])
@pytest.mark.parametrize("ask", ["embed_documents", "embed_query"])
def test_an_error_quotes_no_part_of_a_text(make_provider: Make, text: str, ask: str):
    provider = make_provider(document_prefix="passage: ", query_prefix="query: ")
    echo = text[len(text) // 2 :] if len(text) > 8 else text
    reply = played.reply({"error": {"message": f"cannot read '{echo}' for now"}}, 400)
    provider.played.poison = lambda sent: reply if text in sent else None

    with pytest.raises(InputRefused, match=r"cannot read '\[the text\]' for now"):
        getattr(provider, ask)(text if ask == "embed_query" else [text])
