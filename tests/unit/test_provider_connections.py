"""What happens to a request on its way: over a real socket, with every provider alike."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import requests

from pgembed_django.exceptions import (
    InputRefused,
    InputTooLong,
    ProviderError,
    ProviderLost,
    ProviderMisconfigured,
    ProviderTimeout,
    ProviderUnavailable,
)
from pgembed_django.providers import answers, connections
from pgembed_django.providers.base import Embedded
from pgembed_django.providers.openai import OpenAIProvider
from tests import played
from tests.played.server import silent

Make = Callable[..., OpenAIProvider]


@pytest.fixture
def make_provider() -> Iterator[Make]:
    """Return a provider of a played server, which is its ``played``."""
    yield from played.making(OpenAIProvider, played.OpenAI, path="/v1")


def test_a_refused_connection_is_an_outage(make_provider: Make):
    provider = make_provider(base_url="http://127.0.0.1:9/v1")

    with pytest.raises(ProviderUnavailable, match=r"refused\. .* is base_url right\?"):
        provider.embed_each(["one"])
    assert provider.probe().reachable is False


def test_a_connection_has_a_time_out_of_its_own(make_provider: Make):
    with silent() as address:
        provider = make_provider(
            base_url=f"http://127.0.0.1:{address[1]}/v1",
            connect_timeout_seconds=0.2,
            timeout_seconds=60,
        )

        with pytest.raises(ProviderUnavailable, match=r"accepted no connection within 0\.2 s"):
            provider.embed_each(["one"])


def test_a_name_that_does_not_resolve_is_an_outage(make_provider: Make):
    provider = make_provider(base_url="http://nowhere.invalid/v1")

    with pytest.raises(ProviderUnavailable):
        provider.embed_each(["one"])


class Recorded(io.BytesIO):
    """The body of an answer as vcrpy plays it: its ``read1`` takes no keywords."""


def test_an_answer_that_is_played_from_a_record_is_read(make_provider: Make, monkeypatch):
    provider = make_provider()

    def play(*_: object, **__: object) -> requests.Response:
        answer = requests.Response()
        answer.status_code = 200
        vector = [1.0] * provider.dimensions
        body = {"data": [{"index": 0, "embedding": vector}]}
        answer.raw = Recorded(json.dumps(body).encode())
        return answer

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", play)

    assert isinstance(provider.embed_each(["one"])[0], Embedded)


def test_a_pooled_connection_that_went_away_is_replaced_once(make_provider: Make):
    provider = make_provider()
    provider.embed_query("first")
    provider.played.faults.append(played.HANG_UP)

    assert isinstance(provider.embed_each(["second"])[0], Embedded)
    assert provider.played.asked == [["first"], ["second"], ["second"]]


def test_a_server_that_hangs_up_on_one_text_fails_that_text(make_provider: Make):
    provider = make_provider()
    provider.played.poison = lambda text: played.HANG_UP if text == "bad" else None

    good, bad = provider.embed_each(["good", "bad"])

    assert isinstance(good, Embedded)
    assert "hung up" in str(bad)
    assert not isinstance(bad, ProviderUnavailable)


def test_a_server_that_hangs_up_on_everything_is_down(make_provider: Make):
    provider = make_provider()
    provider.played.poison = lambda text: played.HANG_UP

    with pytest.raises(ProviderUnavailable, match="hung up"):
        provider.embed_each(["one", "two"])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (played.EMPTY, "an empty body"),
        (played.plain(200, "[1, 2"), "not JSON"),
        (played.plain(200, "[1, 2]"), "not JSON"),
        (played.plain(500, ""), "an empty body"),
        (played.plain(500, "Internal Server Error"), "Internal Server Error"),
        (played.Reply(body=b'{"data": [' + b" " * 100, how="cut"), "broke off"),
        (played.Reply(body=b'{"data": [' + b" " * 9000, how="cut"), "broke off"),
        (played.reply({"data": "none"}), "without a list"),
        (played.reply({"data": [{"embedding": "%%%", "index": 0}]}), "invalid base64"),
        (played.reply({"data": [{"embedding": "AAA=", "index": 0}]}), "invalid base64"),
        (played.reply({"data": [{"embedding": 0.5, "index": 0}]}), "other than lists"),
        (played.reply({"data": [{"embedding": ["x"], "index": 0}]}), "other than lists"),
        (played.reply({"data": []}), "0 vectors for 1 texts"),
        (played.reply({"error": [1, 2]}), "no reason given"),
    ],
)
def test_a_broken_answer_has_an_error_of_its_own_and_may_pass(
    make_provider: Make, fault: played.Reply, said: str
):
    provider = make_provider()
    provider.played.faults.append(fault)

    with pytest.raises(ProviderError, match=said) as raised:
        provider.check(provider.embed_batch(["text"]), count=1)
    assert not isinstance(raised.value, ProviderUnavailable)

    provider.played.faults.append(fault)
    assert isinstance(provider.embed_each(["text"])[0], Embedded)


def test_a_page_instead_of_json_is_told_by_its_title(make_provider: Make):
    provider = make_provider()
    provider.played.faults.append(played.HTML)

    with pytest.raises(ProviderUnavailable, match="an HTML page: Sign in"):
        provider.embed_each(["one"])


@pytest.mark.parametrize("fault", [played.SILENT, played.DRIP])
def test_a_server_that_does_not_finish_is_given_up_in_time(make_provider: Make, fault):
    provider = make_provider(timeout_seconds=0.3)
    provider.played.poison = lambda text: fault

    with pytest.raises(ProviderLost, match=r"within 0\.3 s"):
        provider.embed_each(["one"])


def test_an_answer_without_an_end_is_not_read_into_memory(make_provider: Make, monkeypatch):
    monkeypatch.setattr(connections, "MAX_ANSWER_BYTES", 2**20)
    provider = make_provider()
    provider.played.poison = lambda text: played.plain(200, "[" * 2**21) if text == "bad" else None

    good, bad = provider.embed_each(["good", "bad"])

    assert isinstance(good, Embedded)
    assert str(bad) == f"{provider.base_url} answered more than 1 MiB, which is too long to read."
    assert not isinstance(bad, ProviderUnavailable)


def test_a_query_has_a_time_out_of_its_own(make_provider: Make):
    provider = make_provider(timeout_seconds=60)
    provider.played.poison = lambda text: played.SILENT

    with pytest.raises(ProviderTimeout, match=r"within 0\.3 s"):
        provider.embed_query("cats", timeout_seconds=0.3)


def test_a_query_fails_without_being_asked_again(make_provider: Make):
    provider = make_provider(played.OpenAI(context=10), too_long="refuse")
    provider.played.faults.append(played.plain(500, "internal error"))
    zeros = [{"embedding": [0.0] * 16, "index": 0}]

    with pytest.raises(ProviderError, match="internal error"):
        provider.embed_query("cats")
    with pytest.raises(InputTooLong):
        provider.embed_query("cats and dogs")
    provider.played.faults.append(played.reply({"data": zeros}))
    with pytest.raises(InputRefused, match="a vector of zeros for the query"):
        provider.embed_query("cats")
    assert len(provider.played.asked) == 3


def test_a_redirect_on_the_same_server_is_followed_with_the_body(make_provider: Make):
    provider = make_provider()
    provider.played.faults.append(played.plain(307, "", Location="/v1/embeddings"))

    assert isinstance(provider.embed_each(["one"])[0], Embedded)
    assert provider.played.asked == [["one"], ["one"]]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_elsewhere_is_told_and_takes_no_key_along(make_provider: Make, status: int):
    elsewhere = make_provider()
    provider = make_provider()
    target = f"{elsewhere.played.url}/v1/embeddings"
    secret = target.replace("//", "//me:hunter2@") + "?ticket=hunter2"
    provider.played.faults.append(played.plain(status, "", Location=secret))

    with pytest.raises(ProviderMisconfigured) as raised:
        provider.embed_each(["one"])
    assert f"redirects to {target}. Set base_url" in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert elsewhere.played.seen == []


def test_redirects_do_not_go_round_for_ever(make_provider: Make):
    provider = make_provider()
    provider.played.poison = lambda text: played.plain(307, "", Location="/v1/embeddings")

    with pytest.raises(ProviderMisconfigured, match="redirects"):
        provider.embed_each(["one"])
    assert len(provider.played.asked) < 10


def test_a_proxy_is_taken_from_the_environment(
    make_provider: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("NO_PROXY", raising=False)
    proxied = make_provider(base_url="http://embeddings.invalid/v1")
    proxied.played.routes = ("http://embeddings.invalid/v1/embeddings",)
    monkeypatch.setenv("HTTP_PROXY", proxied.played.url)
    beside = make_provider()
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    assert len(proxied.embed_query("through it")) == proxied.dimensions
    assert len(beside.embed_query("past it")) == beside.dimensions
    assert proxied.played.asked == [["through it"]]


def test_a_proxy_that_is_down_is_told_without_its_password(
    make_provider: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://me:hunter2@127.0.0.1:9")
    provider = make_provider(base_url="http://embeddings.invalid/v1")

    with pytest.raises(ProviderUnavailable) as raised:
        provider.embed_query("cats")
    assert str(raised.value) == (
        "http://embeddings.invalid/v1: its proxy: [Errno 111] Connection refused. "
        "Is the proxy of HTTP_PROXY or HTTPS_PROXY running, or is NO_PROXY missing?"
    )


def test_certificates_are_taken_from_the_environment(
    make_provider: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    given = tmp_path / "ours.pem"
    given.write_text("")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(given))
    provider = make_provider(base_url="https://127.0.0.1:9/v1")

    assert provider.client._session().verify == str(given)


def test_certificates_that_are_not_there_are_told_by_their_variable(
    make_provider: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere/ours.pem")
    provider = make_provider(base_url="https://127.0.0.1:9/v1")

    with pytest.raises(ProviderMisconfigured, match=r"REQUESTS_CA_BUNDLE is '/nowhere/ours.pem'"):
        provider.embed_each(["one"])
    assert len(make_provider().embed_query("not asked of http")) == 16


def test_what_follows_an_interim_answer_is_not_taken_for_another_texts(make_provider: Make):
    provider = make_provider()
    provider.played.faults.append(played.plain(103, "", Link="</style.css>"))

    with pytest.raises(ProviderError, match="interim status 103"):
        provider.embed_query("one")
    provider.embed_query("two")

    first, second = provider.played.seen
    assert first.client != second.client


def test_each_request_takes_the_key_of_its_own_time(
    make_provider: Make, monkeypatch: pytest.MonkeyPatch
):
    provider = make_provider(api_key_env="TEAM_KEY")
    for key in ("old", "new"):
        monkeypatch.setenv("TEAM_KEY", key)
        provider.embed_query(key)

    sent = [seen.headers["authorization"] for seen in provider.played.seen]
    assert sent == ["Bearer old", "Bearer new"]


def test_each_thread_has_its_own_connection(make_provider: Make):
    provider = make_provider()
    barrier = threading.Barrier(3)

    def work() -> None:
        barrier.wait(10)
        provider.embed_documents(["one"] * 40)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({seen.client for seen in provider.played.seen}) == 3
    assert len(provider.played.seen) == 6


def test_a_forked_child_does_not_share_its_parents_connection(make_provider: Make):
    provider = make_provider()
    session = provider.client._session()

    provider.client._local.pid = os.getpid() + 1  # as a child sees it

    assert provider.client._session() is not session


BODIES = {
    "numbers": (b'{"embeddings": [[0.1, -2e-05, 3]]}', {"embeddings": [[0.1, -2e-05, 3]]}),
    "by index": (
        b'{"data": [{"index": 0, "embedding": [0.5, 1]}], "usage": {"tokens": 3}}',
        {"data": [{"index": 0, "embedding": [0.5, 1]}], "usage": {"tokens": 3}},
    ),
    "one number each": (b"[[1], [2]]", [[1], [2]]),
    "a null among numbers": (b"[[1, null], [2, 3], null]", [[1, None], [2, 3], None]),
    "the least number of 64 bits": (b"[-%d]" % 2**63, [-(2**63)]),
    "a whole number beyond 64 bits": (b"[-%d]" % 2**70, [-(2**70)]),
    "a key with a NUL": (b'{"a\\u0000": [1]}', {"a\0": [1]}),
    "lists of nothing": (b'{"a": [], "b": [[]]}', {"a": [], "b": [[]]}),
    "a bracket in a string": (b'{"model": "a[b", "v": [1]}', {"model": "a[b", "v": [1]}),
    "strings": (b'["a", "\\u00e9", 1]', ["a", "\u00e9", 1]),
    "what is no JSON by the book": (b"[Infinity]", [float("inf")]),
    "a number beyond float64": (b"[1e999]", [float("inf")]),
    "a page": (b"<html>", None),
    "nothing": (b"", None),
    "no UTF-8": (b'"\xff"', None),
    "too deep": (b"[" * 100_000, None),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("is_installed", [True, False], ids=["simdjson", "json"])
def test_an_answer_is_read_alike_with_simdjson_and_without(name, is_installed, monkeypatch):
    assert answers.simdjson is not None
    if not is_installed:
        monkeypatch.setattr(answers, "simdjson", None)
    body, value = BODIES[name]

    assert as_lists(connections.Answer(200, {}, body).json()) == value


@pytest.mark.parametrize("depth", [900, 1100, 2000, 100_000])
def test_an_answer_that_is_too_deep_is_none(depth: int):
    body = b"[" * depth + b"]" * depth

    try:
        json.loads(body)
    except RecursionError:
        assert connections.Answer(200, {}, body).json() is None
    else:
        assert isinstance(connections.Answer(200, {}, body).json(), list)


def test_truth_is_no_number():
    for body in (b"[1, true]", b"[true, 1]", b"[true]"):
        assert any(one is True for one in connections.Answer(200, {}, body).json())


def test_simdjson_makes_arrays_of_numbers():
    body = b'{"embeddings": [[0.5, 2], [1, -1e3]], "seconds": [3]}'
    value = connections.Answer(200, {}, body).json()

    one, other = value["embeddings"]
    assert one.dtype == other.dtype == value["seconds"].dtype == np.float64
    assert (one.tolist(), other.tolist()) == ([0.5, 2.0], [1.0, -1000.0])


def as_lists(value: object) -> object:
    """Return a value with lists for its arrays."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: as_lists(one) for key, one in value.items()}
    return [as_lists(one) for one in value] if isinstance(value, list) else value
