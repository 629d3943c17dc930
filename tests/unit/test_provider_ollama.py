"""Ollama, as its versions answer on a real socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pgembed_django.exceptions import (
    InputTooLong,
    ModelMissing,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
)
from pgembed_django.providers import ollama
from pgembed_django.providers.base import Embedded
from pgembed_django.providers.ollama import OllamaProvider
from tests import played

Make = Callable[..., OllamaProvider]


@pytest.fixture
def make_provider() -> Iterator[Make]:
    """Return a provider of a played server, which is its ``played``."""
    yield from played.making(OllamaProvider, played.Ollama)


def test_a_thousand_rows_take_no_more_requests_than_batches(make_provider: Make):
    provider = make_provider()

    provider.embed_documents([f"row {number}" for number in range(1000)])

    assert len(provider.played.asked) == 32
    assert len(provider.played.seen) == 33  # and one for the version


def test_one_connection_serves_a_thread(make_provider: Make):
    provider = make_provider()

    provider.embed_documents([f"row {number}" for number in range(100)])

    assert len({seen.client for seen in provider.played.seen}) == 1


def test_the_request_is_constant_but_for_its_texts(make_provider: Make):
    provider = make_provider(
        keep_alive="300", options={"num_ctx": 2048}, send_dimensions=True, headers={"X-Team": "a"}
    )

    provider.embed_query("cats")

    [seen] = provider.played.seen
    assert seen.payload == {
        "model": "played",
        "input": ["cats"],
        "truncate": False,
        "keep_alive": 300,
        "options": {"num_ctx": 2048},
        "dimensions": 16,
    }
    assert seen.headers["x-team"] == "a"
    assert "authorization" not in seen.headers


def test_a_model_that_is_not_pulled_is_an_outage_that_says_what_to_run(make_provider: Make):
    provider = make_provider(model="bge-m3")

    with pytest.raises(ModelMissing, match="ollama pull bge-m3"):
        provider.embed_each(["cats", "dogs"])

    assert [seen.path for seen in provider.played.seen].count("/api/embeddings") == 0
    probe = provider.probe()
    assert (probe.reachable, probe.model_present, probe.ok) == (True, False, False)


def test_an_old_server_is_asked_one_by_one_and_each_text_once(make_provider: Make):
    provider = make_provider(played.Ollama(version="0.2.5"))

    provider.embed_documents(["one", "two", "three"])

    paths = [seen.path for seen in provider.played.seen]
    assert paths.count("/api/embed") == 1
    assert paths.count("/api/embeddings") == 3


def test_a_server_without_a_version_route_is_old_when_the_old_route_answers(make_provider: Make):
    server = played.Ollama(version=None)
    server.faults.extend([played.NO_ROUTE])
    provider = make_provider(server)

    assert isinstance(provider.embed_each(["one"])[0], Embedded)


def test_an_upgraded_server_is_asked_in_batches_again(make_provider: Make):
    clock = played.Clock()
    provider = make_provider(played.Ollama(version="0.2.5"), clock=clock)
    provider.embed_documents(["one", "two"])
    provider.played.version = "0.33.0"
    provider.played.seen.clear()

    clock.now += ollama.RECHECK_SECONDS
    provider.embed_documents(["one", "two"])

    assert provider.played.asked == [["one", "two"]]


def test_a_passing_404_of_a_proxy_does_not_change_the_route(make_provider: Make):
    provider = make_provider()
    provider.played.faults.append(played.NO_ROUTE)

    with pytest.raises(ProviderMisconfigured, match="no /api/embed"):
        provider.embed_each(["one", "two"])
    provider.played.seen.clear()
    provider.embed_documents(["one", "two"])

    assert provider.played.asked == [["one", "two"]]


def test_a_wrong_path_in_the_address_is_told(make_provider: Make):
    provider = make_provider()
    wrong = OllamaProvider(
        alias="wrong", model="played", dimensions=16, base_url=provider.played.url + "/v1"
    )

    with pytest.raises(ProviderMisconfigured, match="address of an Ollama server"):
        wrong.embed_documents(["one"])
    wrong.close()


def test_servers_that_shuffle_batches_get_one_text_at_a_time(make_provider: Make):
    provider = make_provider(played.Ollama(version="0.3.4"))

    provider.embed_documents(["one", "two", "three"])

    assert provider.played.asked == [["one"], ["two"], ["three"]]


@pytest.mark.parametrize(
    "message",
    [
        "the input length exceeds the context length",
        "input exceeds maximum context length",
        "input length exceeds maximum context length",
    ],
)
@pytest.mark.parametrize("status", [400, 500])
def test_too_long_is_told_by_the_words_of_any_version(make_provider: Make, message, status):
    provider = make_provider(too_long="refuse")
    refusal = played.reply({"error": message}, status)
    provider.played.poison = lambda text: refusal if len(text) > 20 else None

    long, short = provider.embed_each(["a text of more than twenty", "short"])

    assert isinstance(long, InputTooLong)
    assert isinstance(short, Embedded)


def test_a_text_that_is_too_long_is_cut_and_said_to_be(make_provider: Make):
    provider = make_provider(played.Ollama(context=40))
    text = "twelve words of which only the first few fit the played context"

    whole, cut = provider.embed_each(["short", text])

    assert whole.was_cut is False
    assert cut.was_cut is True
    sent = provider.played.asked[-1][-1]
    assert text.startswith(f"{sent} ")
    assert cut.vector == pytest.approx(played.vector_of(sent, 16), abs=1e-5)


def test_a_query_that_is_too_long_is_cut_too(make_provider: Make):
    provider = make_provider(played.Ollama(context=40))
    assert provider.embed_query("word " * 100).shape == (16,)


def test_truncate_leaves_the_cutting_to_the_server(make_provider: Make):
    provider = make_provider(played.Ollama(context=40), truncate=True)

    [embedded] = provider.embed_each(["word " * 100])

    assert embedded.was_cut is False
    assert len(provider.played.asked) == 1


NOT_A_TEXTS_FAULT = [
    (503, {"error": "server busy, please try again.  maximum pending requests exceeded"}),
    (500, {"error": "model requires more system memory (9.9 GiB) than is available (1.2 GiB)"}),
    (500, {"error": "llama-server process has terminated: exit status 2"}),
    (500, {"error": "timed out waiting for llama-server to start"}),
    (500, {"error": 'option "num_ctx" must be of type integer'}),
    (501, {"error": "this model does not support embeddings"}),
    (400, {"error": 'time: missing unit in duration "300"'}),
    (400, {"error": "invalid model name"}),
    (401, {"error": "unauthorized"}),
    (403, {}),
]


@pytest.mark.parametrize(("status", "body"), NOT_A_TEXTS_FAULT)
def test_what_is_not_the_texts_fault_charges_none(make_provider: Make, status, body):
    provider = make_provider()
    provider.played.poison = lambda text: played.reply(body, status)

    with pytest.raises(ProviderUnavailable, match=str(body.get("error", "403"))[:20]):
        provider.embed_each(["one", "two"])
    assert len(provider.played.asked) == 1


TEXTS_FAULT = [
    (500, {"error": "failed to encode response: json: unsupported value: NaN"}),
    (400, {"error": "embedding contains NaN or Inf values"}),
    (500, {"error": {}}),
    (500, {"error": "failed to generate embedding"}),
    (400, {"error": 'do embedding request: Post "http://127.0.0.1:3/v1/embeddings": EOF'}),
    (200, {"model": "played", "embeddings": []}),
    (200, {"error": "something"}),
]


@pytest.mark.parametrize(("status", "body"), TEXTS_FAULT)
def test_a_poison_text_fails_alone_whatever_it_does_to_the_server(
    make_provider: Make, status, body
):
    provider = make_provider()
    answer = played.reply(body, status)
    provider.played.poison = lambda text: answer if "poison" in text else None
    texts = [f"text {number}" for number in range(31)]

    outcomes = provider.embed_each([*texts[:11], "poison", *texts[11:]])

    assert [position for position, it in enumerate(outcomes) if isinstance(it, ProviderError)] == [
        11
    ]
    assert not isinstance(outcomes[11], ProviderUnavailable)
    assert len(provider.played.asked) <= 16


@pytest.mark.parametrize("row", [[], None, [0.0] * 16, [float("nan")] * 16, [1e39] * 16])
def test_a_vector_of_no_use_is_its_own_texts_failure(make_provider: Make, row):
    provider = make_provider()
    good = played.vector_of("x", 16).tolist()
    provider.played.embed = lambda seen: played.reply(
        {"embeddings": [row if text == "two" else good for text in seen.payload["input"]]}
    )

    first, bad, last = provider.embed_each(["one", "two", "three"])

    assert isinstance(first, Embedded)
    assert isinstance(last, Embedded)
    assert "played (provider 'tested') answered a vector" in str(bad)
    assert len(provider.played.asked) == 6


@pytest.mark.parametrize("row", [[], None, [0.0] * 16, [float("nan")] * 16, [1e39] * 16])
def test_a_vector_of_no_use_that_comes_once_is_nobodys_failure(make_provider: Make, row):
    provider = make_provider()
    good = played.vector_of("x", 16).tolist()
    provider.played.faults.append(played.reply({"embeddings": [good, row, good]}))

    outcomes = provider.embed_each(["one", "two", "three"])

    assert all(isinstance(outcome, Embedded) for outcome in outcomes)
    assert provider.played.asked == [["one", "two", "three"], ["two"]]


def test_a_server_of_a_version_that_no_release_has_is_asked_as_a_new_one(make_provider: Make):
    provider = make_provider(played.Ollama(version="9" * 5000 + ".0.0"))
    provider.played.embed = lambda seen: played.Ollama.embed(played.Ollama(), seen)

    assert isinstance(provider.embed_each(["one"])[0], Embedded)
