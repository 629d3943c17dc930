"""A server that answers a little at a time is given up in time, however it drips.

Each played server ends its answer after some seconds: a client without a deadline would wait.
The clock of the deadlines is the server's, so that a busy machine reaches none of them early.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pgembed_django.exceptions import ProviderTimeout, ProviderUnavailable
from pgembed_django.providers import connections
from pgembed_django.providers.openai import OpenAIProvider
from tests.played import Clock
from tests.played.dripping import BIT_SECONDS, CERTIFICATE, Drip, dripping
from tests.played.server import silent

BODY = json.dumps({"data": [{"index": 0, "embedding": [1.0] * 16}]}).encode()
OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n" % len(BODY)
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)

DRIPS = {
    "a status line": Drip(b"HTTP/1.1 200 ", b"O", b"\r\n" + LENGTH + BODY),
    "headers": Drip(OK, b"X-One: more\r\n", LENGTH + BODY),
    "a header": Drip(OK + b"X-One: ", b"x", b"\r\n" + LENGTH + BODY),
    "interim answers": Drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n", OK + LENGTH + BODY),
    "an interim answer's headers": Drip(
        b"HTTP/1.1 100 Continue\r\n", b"X-One: more\r\n", b"\r\n" + OK + LENGTH + BODY
    ),
    "a body": Drip(OK + b"Content-Length: %d\r\n\r\n" % (90 + len(BODY)), b" ", BODY),
    "a body without a length": Drip(OK + b"\r\n", b" ", BODY),
    "chunks": Drip(CHUNKED, b"1\r\n \r\n", CHUNK + b"0\r\n\r\n"),
    "the size of a chunk": Drip(CHUNKED, b"0", CHUNK + b"0\r\n\r\n"),
    "an extension of a chunk": Drip(CHUNKED + b"1;", b"x", b"\r\n \r\n" + CHUNK + b"0\r\n\r\n"),
    "trailers": Drip(CHUNKED + CHUNK + b"0\r\n", b"X-One: more\r\n", b"\r\n"),
}
REDIRECT = Drip(
    b"HTTP/1.1 307 Moved\r\nLocation: /v1/embeddings\r\nX-One: ",
    b"x",
    b"\r\nContent-Length: 0\r\n\r\n",
    times=1,
    kept=True,
)

Serve = Callable[[Drip], Drip]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda drip: stack.enter_context(dripping(replace(drip, over=threading.Event())))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all deadlines."""
    clock = Clock()
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(CERTIFICATE))


def provider_of(url: str, **options: object) -> OpenAIProvider:
    given = {"base_url": url, "timeout_seconds": 60, "query_timeout_seconds": 60} | options
    return OpenAIProvider(alias="tested", model="played", dimensions=16, **given)


@pytest.mark.parametrize("name", DRIPS)
def test_a_drip_is_given_up_in_time(serve: Serve, clock: Clock, name: str):
    server = serve(replace(DRIPS[name], clock=clock))

    with pytest.raises(ProviderTimeout, match="no answer within 60 s"):
        provider_of(f"http://{server.address}/v1").embed_query("cats")
    assert (server.requests, server.answers) == (1, 0)


@pytest.mark.parametrize("name", ["headers", "trailers"])
def test_a_drip_through_tls_is_given_up_in_time(
    serve: Serve, clock: Clock, trusted: None, name: str
):
    server = serve(replace(DRIPS[name], has_tls=True, clock=clock))

    with pytest.raises(ProviderTimeout, match="no answer within 60 s"):
        provider_of(f"https://{server.address}/v1").embed_query("cats")
    assert (server.requests, server.answers) == (1, 0)


@pytest.mark.parametrize("name", DRIPS)
def test_a_slow_answer_is_taken_whole_before_the_deadline(serve: Serve, clock: Clock, name: str):
    drip = replace(DRIPS[name], times=1, clock=clock)
    if name == "a body":
        drip.head = drip.head.replace(b"%d" % (90 + len(BODY)), b"%d" % (1 + len(BODY)))
    server = serve(drip)

    found = provider_of(f"http://{server.address}/v1").embed_query("cats")
    assert len(found) == 16


def test_an_answer_through_tls_is_read(serve: Serve, trusted: None):
    server = serve(Drip(tail=OK + LENGTH + BODY, times=0, kept=True, has_tls=True))
    provider = provider_of(f"https://{server.address}/v1")

    assert len(provider.embed_query("cats")) == len(provider.embed_query("dogs")) == 16


def test_redirects_share_one_deadline(serve: Serve, clock: Clock):
    server = serve(replace(REDIRECT, clock=clock))

    with pytest.raises(ProviderTimeout):
        provider_of(f"http://{server.address}/v1").embed_query("cats")
    assert server.requests == 2


def test_a_query_that_is_cut_and_asked_again_has_one_deadline(serve: Serve, clock: Clock):
    refusal = b'{"error": {"message": "maximum context length is 8192 tokens"}}'
    length = b"Content-Length: %d\r\n\r\n" % len(refusal)
    tail = b"\r\n" + length + refusal
    server = serve(Drip(b"HTTP/1.1 400 No\r\nX-One: ", b"x", tail, times=1, kept=True, clock=clock))

    with pytest.raises(ProviderTimeout):
        provider_of(f"http://{server.address}/v1").embed_query("cats" * 99)
    assert server.requests == 2


def test_a_second_try_has_only_the_time_that_is_left(serve: Serve, clock: Clock):
    server = serve(Drip(tail=b"", times=1, clock=clock))

    with pytest.raises(ProviderTimeout):
        provider_of(f"http://{server.address}/v1").embed_query("cats")
    assert server.requests == 2


class Sips(Drip):
    def talk(self, wire):
        while not self.over.wait(0.02):
            self.clock.now += BIT_SECONDS
            wire.recv(16384)


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_server_that_takes_no_more_of_the_request_is_given_up(
    serve: Serve, clock: Clock, trusted: None, has_tls: bool
):
    server = serve(Sips(has_tls=has_tls, clock=clock))
    scheme = "https" if has_tls else "http"
    # True time, as one call sends all. Nothing before that takes time by the clock.
    provider = provider_of(f"{scheme}://{server.address}/v1", query_timeout_seconds=0.3)

    with pytest.raises(ProviderTimeout, match=r"no answer within 0\.3 s"):
        provider.embed_query("x" * 2**24)


def test_a_handshake_is_part_of_connecting(serve: Serve):
    hello = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc"
    server = serve(Drip(hello, b"\0", reads=False))

    with pytest.raises(ProviderUnavailable, match=r"no connection within 0\.2 s"):
        provider_of(
            f"https://{server.address}/v1", query_timeout_seconds=60, connect_timeout_seconds=0.2
        ).embed_query("cats")


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_proxys_answer_is_part_of_connecting(
    serve: Serve, clock: Clock, trusted: None, monkeypatch: pytest.MonkeyPatch, has_tls: bool
):
    proxy = serve(replace(DRIPS["headers"], has_tls=has_tls, clock=clock))
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", f"{'https' if has_tls else 'http'}://{proxy.address}")
    provider = provider_of(
        "https://embeddings.invalid/v1", query_timeout_seconds=600, connect_timeout_seconds=60
    )

    with pytest.raises(ProviderUnavailable, match="no connection within 60 s"):
        provider.embed_query("cats")
    assert (proxy.requests, proxy.answers) == (1, 0)


def test_a_silent_address_leaves_time_for_the_next(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    server = serve(Drip(tail=OK + LENGTH + BODY, times=0))
    with silent() as address:
        host, port = server.address.split(":")
        addresses = [address, (host, int(port))]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", one) for one in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        provider = provider_of("http://embeddings.invalid/v1", query_timeout_seconds=1)

        assert len(provider.embed_query("cats")) == 16
