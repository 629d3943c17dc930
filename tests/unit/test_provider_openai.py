"""OpenAI's API, as its many servers answer on a real socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pgembed_django.exceptions import (
    BatchTooLarge,
    InputTooLong,
    ModelMissing,
    ProviderError,
)
from pgembed_django.providers import answers, openai
from pgembed_django.providers.base import Embedded
from pgembed_django.providers.openai import OpenAIProvider
from tests import played

Make = Callable[..., OpenAIProvider]
KIN = ["openai", "vllm", "tei", "llama.cpp", "lm studio", "litellm"]


@pytest.fixture
def make_provider() -> Iterator[Make]:
    """Return a provider of a played server, which is its ``played``."""
    yield from played.making(OpenAIProvider, played.OpenAI, path="/v1")


def test_the_request_holds_what_the_options_say(
    make_provider: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TEAM_KEY", "sk-secret-of-the-team\n")
    monkeypatch.setenv("GATEWAY_KEY", "gateway")
    provider = make_provider(
        api_key_env="TEAM_KEY",
        organization="org",
        project="proj",
        header_envs={"X-Api-Key": "GATEWAY_KEY"},
        send_dimensions=True,
    )

    provider.embed_query("cats")

    [seen] = provider.played.seen
    assert seen.payload == {
        "model": "played",
        "input": ["cats"],
        "encoding_format": "base64",
        "dimensions": 16,
    }
    assert seen.headers["authorization"] == "Bearer sk-secret-of-the-team"
    assert seen.headers["openai-organization"] == "org"
    assert seen.headers["openai-project"] == "proj"
    assert seen.headers["x-api-key"] == "gateway"


def test_dimensions_are_not_sent_unless_asked_for(make_provider: Make):
    provider = make_provider()
    provider.embed_query("cats")
    assert "dimensions" not in provider.played.seen[0].payload


BODIES = {"document_body": {"input_type": "passage"}, "query_body": {"input_type": "query"}}


class Asymmetric(played.OpenAI):
    """Has other vectors for queries than for passages, and refuses what is neither, as NIM."""

    def embed(self, seen: played.Seen) -> played.Reply:
        kind = seen.payload.get("input_type")
        if kind not in ("passage", "query"):
            return self.error(400, f"'input_type' is {kind!r}, not 'passage' or 'query'")
        self.weights = kind
        return super().embed(seen)


def test_texts_and_queries_are_sent_with_their_own_fields(make_provider: Make):
    server = Asymmetric()
    provider = make_provider(server, **BODIES)

    [document] = provider.embed_documents(["cats"])
    query = provider.embed_query("cats")

    assert document == pytest.approx(played.vector_of("passagecats", 16))
    assert query == pytest.approx(played.vector_of("querycats", 16))
    assert provider.probe().ok
    base = {"model": "played", "input": ["cats"], "encoding_format": "base64"}
    assert server.seen[0].payload == {**base, "input_type": "passage"}
    assert server.seen[1].payload == {**base, "input_type": "query"}


def test_a_probe_tells_that_queries_are_refused(make_provider: Make):
    provider = make_provider(Asymmetric(), document_body={"input_type": "passage"})

    probe = provider.probe()

    assert probe.width == 16
    assert "'input_type' is None, not 'passage' or 'query'" in probe.message


def test_fields_of_the_body_are_part_of_the_identity(make_provider: Make):
    bare, empty = make_provider(), make_provider(document_body={}, query_body=None)
    one = make_provider(**BODIES)
    other = make_provider(**{**BODIES, "query_body": {"input_type": "document"}})

    assert bare.identity() == empty.identity()
    assert one.identity() == {**bare.identity(), **BODIES}
    assert other.identity() != one.identity()


def test_a_server_that_refuses_base64_is_sent_the_fields_again(make_provider: Make):
    provider = make_provider(Asymmetric(takes_base64=False), **BODIES)

    assert provider.embed_query("cats") == pytest.approx(played.vector_of("querycats", 16))


@pytest.mark.parametrize("width", [8, 16])
def test_vectors_that_a_server_cannot_shorten_are_truncated_here(make_provider: Make, width: int):
    provider = make_provider(dimensions=width, truncate_dimensions=True)
    first = played.vector_of("cats", 16)[:width]
    expected = pytest.approx(first / np.linalg.norm(first))

    assert provider.embed_documents(["cats"])[0] == expected
    assert provider.embed_query("cats") == expected
    assert "dimensions" not in provider.played.seen[0].payload


def test_no_netrc_puts_its_own_authorization_there(
    make_provider: Make, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("TEAM_KEY", "ours")

    provider = make_provider(api_key_env="TEAM_KEY")
    provider.embed_query("cats")

    assert provider.played.seen[0].headers["authorization"] == "Bearer ours"


def test_a_server_that_refuses_base64_is_asked_for_floats_once_and_for_long(make_provider: Make):
    clock = played.Clock()
    provider = make_provider(played.OpenAI(takes_base64=False), clock=clock, batch_size=1)

    provider.embed_documents(["one", "two"])
    clock.now += openai.RECHECK_SECONDS
    provider.embed_documents(["three"])

    formats = [seen.payload["encoding_format"] for seen in provider.played.seen]
    assert formats == ["base64", "float", "float", "base64", "float"]


def test_a_server_that_knows_of_no_encoding_is_not_asked_for_one(make_provider: Make):
    provider = make_provider(batch_size=1)

    def refuse(seen: played.Seen) -> played.Reply:
        if "encoding_format" not in seen.payload:
            return played.OpenAI.embed(provider.played, seen)
        extra = {"loc": ["body", "encoding_format"], "msg": "Extra inputs are not permitted"}
        return played.reply({"detail": [extra]}, 422)

    provider.played.embed = refuse

    assert all(isinstance(one, Embedded) for one in provider.embed_each(["one", "two"]))
    formats = [seen.payload.get("encoding_format") for seen in provider.played.seen]
    assert formats == ["base64", "float", None, None]


@pytest.mark.parametrize("order", [[2, 0, 1], [0, 1, 2]])
def test_the_index_gives_the_order(make_provider: Make, order: list[int]):
    provider = make_provider()
    texts = ["one", "two", "three"]
    data = [
        {"index": index, "embedding": played.vector_of(texts[index], 16).tolist()}
        for index in order
    ]
    provider.played.faults.append(played.reply({"data": data}))

    vectors = provider.embed_documents(texts)

    assert vectors[0] == pytest.approx(played.vector_of("one", 16), abs=1e-5)
    assert vectors[2] == pytest.approx(played.vector_of("three", 16), abs=1e-5)


GEMINI = [{}, {"index": 1}, {"index": 2}]
SILENT = [{}, {}, {}]


@pytest.mark.parametrize("is_installed", [True, False], ids=["simdjson", "json"])
@pytest.mark.parametrize("told", [GEMINI, SILENT, [{"index": None}] * 3, [{"index": 0.0}, {}, {}]])
def test_without_an_index_the_order_is_that_of_the_texts(
    make_provider: Make, told: list[dict[str, Any]], is_installed, monkeypatch
):
    if not is_installed:
        monkeypatch.setattr(answers, "simdjson", None)
    provider = make_provider()
    texts = ["one", "two", "three"]
    data = [
        {**one, "embedding": played.vector_of(text, 16).tolist()}
        for one, text in zip(told, texts, strict=True)
    ]
    provider.played.faults.append(played.reply({"data": data}))

    found = provider.embed_documents(texts)

    assert found == pytest.approx(
        np.stack([played.vector_of(text, 16) for text in texts]), abs=1e-5
    )
    assert len(provider.played.asked) == 1


@pytest.mark.parametrize("is_installed", [True, False], ids=["simdjson", "json"])
@pytest.mark.parametrize(
    "indexes",
    [
        *([0, 0], [1, 1], [1, 2], [-1, 0], [None, 0], [1, None], [True, False], [False, 1]),
        *(["0", "1"], [0, "1"], [0.5, 1], [0, 1.5], [0, 10**400], [[0], [1]], [{}, 1], [[], []]),
    ],
)
def test_an_index_that_fits_nothing_is_no_answer(
    make_provider: Make, indexes, is_installed, monkeypatch
):
    if not is_installed:
        monkeypatch.setattr(answers, "simdjson", None)
    provider = make_provider()
    row = played.vector_of("x", 16).tolist()
    data = [{"index": index, "embedding": row} for index in indexes]
    provider.played.faults.append(played.reply({"data": data}))

    with pytest.raises(ProviderError, match=r"a wrong index: .* not from 0 to 1\."):
        provider.embed_batch(["one", "two"])


def test_a_server_that_numbers_all_vectors_alike_is_sent_single_texts(make_provider: Make):
    server = played.OpenAI()

    def embed(seen: played.Seen) -> played.Reply:
        rows = [server.vector_of(text).tolist() for text in seen.payload["input"]]
        # In another order than that of the texts: nothing tells which is whose.
        return played.reply({"data": [{"index": 0, "embedding": row} for row in rows[::-1]]})

    server.embed = embed
    provider = make_provider(server)
    texts = [f"text {number}" for number in range(64)]

    found = provider.embed_documents(texts)

    assert found == pytest.approx(
        np.stack([played.vector_of(text, 16) for text in texts]), abs=1e-5
    )
    assert [len(asked) for asked in server.asked] == [32, 16, 8, 4, 2] + [1] * 64

    server.seen.clear()
    provider.embed_documents(texts)
    assert [len(asked) for asked in server.asked] == [1] * 64

    with pytest.raises(BatchTooLarge, match=r"\[0, 0\] .* set batch_size to 1\."):
        provider.embed_batch(["one", "two"])


@pytest.mark.parametrize("kin", KIN)
def test_too_long_is_told_by_the_words_of_each_server(make_provider: Make, kin: str):
    provider = make_provider(played.OpenAI(kin=kin, context=40), too_long="refuse")

    short, long, other = provider.embed_each(["short", "word " * 20, "other"])

    assert isinstance(short, Embedded)
    assert isinstance(long, InputTooLong)
    assert isinstance(other, Embedded)


@pytest.mark.parametrize("kin", KIN)
def test_a_text_is_cut_to_what_the_server_takes(make_provider: Make, kin: str):
    provider = make_provider(played.OpenAI(kin=kin, context=40))

    [embedded] = provider.embed_each(["word " * 20])

    assert embedded.was_cut is True
    assert 20 <= len(provider.played.asked[-1][0]) <= 40


@pytest.mark.parametrize("ask", ["embed_documents", "embed_query"])
def test_a_limit_in_characters_is_kept_by_a_few_cuts(make_provider: Make, ask: str):
    provider = make_provider(
        played.OpenAI(kin="infinity", context=12_288), document_prefix="passage: "
    )

    getattr(provider, ask)("word " * 10_000 if ask == "embed_query" else ["word " * 10_000])

    lengths = [len(text) for [text] in provider.played.asked if text.count("word") > 1]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] <= 12_288 < lengths[-2]


@pytest.mark.parametrize("kin", KIN)
def test_a_model_that_is_missing_is_an_outage(make_provider: Make, kin: str):
    provider = make_provider(played.OpenAI(kin=kin), model="nope")

    with pytest.raises(ModelMissing, match="nope"):
        provider.embed_each(["one", "two"])
    assert len(provider.played.asked) == 1


def test_a_server_that_takes_smaller_batches_is_sent_smaller_ones(make_provider: Make):
    provider = make_provider(played.OpenAI(kin="tei"), batch_size=64)
    texts = [f"text {number}" for number in range(128)]

    provider.embed_documents(texts)
    assert [len(asked) for asked in provider.played.asked] == [64, 32, 32, 32, 32]

    with pytest.raises(BatchTooLarge):
        provider.embed_batch(texts)


def test_a_batch_is_bounded_by_tokens_too(make_provider: Make):
    provider = make_provider(max_tokens_per_batch=100)

    provider.embed_documents(["x" * 120] * 6)  # some 41 tokens each

    assert [len(asked) for asked in provider.played.asked] == [2, 2, 2]
