"""Keep-alive connections to one server, each request within a deadline.

The time-outs of ``requests`` limit each wait, so a server that sends a byte now and then, or a name
with many addresses, prolongs them for ever. Only the lookup of a name cannot be limited.
"""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit
from weakref import WeakSet

import requests
from requests.adapters import HTTPAdapter
from urllib3 import exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util.ssl_ import create_urllib3_context

from pgembed_django.exceptions import (
    ProviderError,
    ProviderMisconfigured,
    ProviderTimeout,
    ProviderUnavailable,
)
from pgembed_django.providers import answers

MAX_REDIRECTS: Final = 3
REDIRECTS: Final = (301, 302, 303, 307, 308)
READ_BYTES: Final = 65536
MAX_ANSWER_BYTES: Final = 2**28
"""Enough for 2,000 vectors of 4,096 numbers as JSON. A longer answer must be something else."""

HEADERS: Final = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",  # numbers hardly compress, and it costs the server time
    "Content-Type": "application/json",
    "User-Agent": "pgembed-django",
}


class _Deadline(threading.local):
    """When each thread's request must have ended."""

    at = math.inf


_deadline = _Deadline()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """End whatever this thread does with its connections after ``seconds``, if not before."""
    outer = _deadline.at
    _deadline.at = min(outer, time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.at = outer


def left() -> float:
    """Return how many seconds are left. Raises ``TimeoutError`` if none are."""
    seconds = _deadline.at - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's response. ``headers`` is case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body's value, or None if it is not JSON. A list of numbers may be an array."""
        try:
            return answers.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def object(self) -> dict[str, Any]:
        """Return the body's JSON object. Empty: it is none."""
        value = self.json()
        return value if isinstance(value, dict) else {}


class Client:
    """Sends requests to one server. Each thread has a session of its own."""

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_seconds: float,
        headers: Callable[[], Mapping[str, str]],
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._connect_timeout_seconds = connect_timeout_seconds
        self._headers = headers
        self._lock = threading.Lock()
        # Weak references, so that a session is freed when its thread ends.
        self._sessions: WeakSet[requests.Session] = WeakSet()
        self._local = threading.local()

    @property
    def connection(self) -> object | None:
        """The socket that this thread's last answer came over. None: it is closed already."""
        return getattr(self._local, "socket", None)

    def close(self) -> None:
        """Close all connections. The next request opens new ones."""
        with self._lock:
            sessions = list(self._sessions)
            self._sessions.clear()
            self._local = threading.local()
        for session in sessions:
            session.close()

    def request(
        self, method: str, path: str, payload: object = None, *, timeout_seconds: float
    ) -> Answer:
        """Return the answer, whatever its status. ``payload`` is sent as JSON.

        ``timeout_seconds`` limits the whole exchange, with connecting, redirects and a retry.

        Raises:
            ProviderTimeout: connected, but no full answer in time.
            ProviderUnavailable: no connection.
            ProviderMisconfigured: a redirect to another server, or an unusable address.
            ProviderError: the server closed the connection before or during its answer.
        """
        url = self.base_url + path
        body = None
        if payload is not None:
            text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
            body = text.encode(errors="replace")
        with within(timeout_seconds):
            for _ in range(MAX_REDIRECTS + 1):
                answer = self._send(method, url, body, timeout_seconds)
                location = answer.headers.get("location", "")
                if answer.status not in REDIRECTS or not location:
                    return answer
                # Followed here, with the body. requests itself would also send it, with our key,
                # to another server, and would turn it into a GET for statuses below 307.
                target = urljoin(url, location)
                if answer.status < 307 or urlsplit(target)[:2] != urlsplit(url)[:2]:
                    break
                url = target
        scheme, where, path, _, _ = urlsplit(target)
        raise ProviderMisconfigured(
            f"{self.base_url} redirects to {scheme}://{where.rpartition('@')[2]}{path}. "
            "Set base_url to where the server is."
        )

    def _send(self, method: str, url: str, body: bytes | None, timeout_seconds: float) -> Answer:
        is_again = False
        while True:
            try:
                return self._send_once(method, url, body, timeout_seconds)
            except (requests.RequestException, exceptions.HTTPError, OSError, ValueError) as error:
                # The server may have closed an idle connection. Embedding twice is harmless.
                is_over = is_again or time.monotonic() >= _deadline.at
                if is_over or not _is_hung_up(error):
                    raise self._error(error, timeout_seconds) from None
                is_again = True
                self._session().close()

    def _send_once(
        self, method: str, url: str, body: bytes | None, timeout_seconds: float
    ) -> Answer:
        response = self._session().request(
            method,
            url,
            data=body,
            headers=self._headers(),
            timeout=(min(self._connect_timeout_seconds, timeout_seconds), timeout_seconds),
            allow_redirects=False,
            stream=True,
        )
        content = bytearray()
        with response:
            self._local.socket = getattr(getattr(response.raw, "connection", None), "sock", None)
            # Set here, as the read1 of recorded answers (cassettes) does not take it as argument.
            response.raw.decode_content = True
            # read1() returns after one recv; read() would wait for READ_BYTES.
            while piece := response.raw.read1(READ_BYTES):
                content += piece
                if len(content) > MAX_ANSWER_BYTES:
                    raise ProviderError(
                        f"{self.base_url} answered more than {MAX_ANSWER_BYTES >> 20} MiB, which "
                        "is too long to read."
                    )
                left()
        if response.status_code < 200:
            # http.client mistakes an interim status for the answer. The real answer comes later,
            # and on this connection it would be mistaken for the answer to the next request.
            self._session().close()
            raise ProviderError(
                f"{self.base_url} answered with the interim status {response.status_code}, which "
                "is not supported."
            )
        return Answer(response.status_code, response.headers, bytes(content))

    def _error(self, error: Exception, timeout_seconds: float) -> ProviderError:
        """Return our error for one of requests', urllib3's or the socket's."""
        where, kind = self.base_url, type(error).__name__
        if isinstance(error, requests.ConnectTimeout):
            seconds = min(self._connect_timeout_seconds, timeout_seconds)
            return ProviderUnavailable(f"{where} accepted no connection within {seconds:g} s.")
        is_late = isinstance(error, (requests.Timeout, exceptions.TimeoutError, TimeoutError))
        if is_late or time.monotonic() >= _deadline.at:
            return ProviderTimeout(f"{where} gave no answer within {timeout_seconds:g} s.")
        if isinstance(error, requests.exceptions.SSLError):
            return ProviderMisconfigured(f"{where}: {_cause(error)}")
        if _is_hung_up(error):
            return ProviderError(f"{where} hung up without an answer.")
        if isinstance(error, requests.ConnectionError):
            return ProviderUnavailable(f"{where}: {_cause(error)}")
        if isinstance(error, (requests.RequestException, ValueError)):
            # Not quoted: the message may contain a header.
            return ProviderMisconfigured(f"{where} cannot be asked: {kind}.")
        return ProviderError(f"{where} broke off its answer: {kind}.")

    def _session(self) -> requests.Session:
        """Return this thread's session. A forked child gets a new one, not its parent's sockets."""
        local = self._local
        session: requests.Session | None = getattr(local, "session", None)
        if session is None or local.pid != os.getpid():
            session = requests.Session()
            # Read the environment here, once. With trust_env, a .netrc would set Authorization.
            session.trust_env = False
            session.proxies = requests.utils.get_environ_proxies(self.base_url)
            session.verify = self._certificates()
            for scheme in ("http://", "https://"):
                session.mount(scheme, Adapter())
            session.headers.update(HEADERS)
            local.session, local.pid = session, os.getpid()
            with self._lock:
                self._sessions.add(session)
        return session

    def _certificates(self) -> str:
        """Return the path of the certificates to trust, as requests chooses it."""
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            if path := os.environ.get(name):
                if self.base_url.startswith("https:") and not Path(path).exists():
                    raise ProviderMisconfigured(
                        f"The environment variable {name} is {path!r}, which does not exist."
                    )
                return path
        return requests.utils.DEFAULT_CA_BUNDLE_PATH


def _is_hung_up(error: Exception) -> bool:
    """Return whether the connection broke (reset, broken pipe) after it was established."""
    is_protocol = bool(error.args) and isinstance(error.args[0], exceptions.ProtocolError)
    return is_protocol and isinstance(error, requests.ConnectionError)


def _cause(error: Exception) -> str:
    """Return the innermost reason, such as "[Errno 111] Connection refused", and a remedy."""
    reason = getattr(error.args[0] if error.args else error, "reason", error)
    original = getattr(reason, "original_error", reason)
    cause = str(original).rpartition(": ")[2] or type(error).__name__
    if isinstance(error, requests.exceptions.SSLError):
        return f"{cause}."
    if isinstance(reason, exceptions.ProxyError):
        return (
            f"its proxy: {cause}. Is the proxy of HTTP_PROXY or HTTPS_PROXY running, or is "
            "NO_PROXY missing?"
        )
    if os.strerror(errno.EMFILE) in cause:
        return f"{cause}. This process is at its limit of open files: see ulimit -n."
    return f"{cause}. Is the server running, and is base_url right?"


def _limited(method: Callable[..., Any]) -> Any:
    @wraps(method)
    def limited(self: socket.socket, *args: Any, **options: Any) -> Any:
        self.settimeout(left())
        return method(self, *args, **options)

    return limited


class _Socket(socket.socket):
    recv = _limited(socket.socket.recv)
    recv_into = _limited(socket.socket.recv_into)
    sendall = _limited(socket.socket.sendall)


class _TlsSocket(ssl.SSLSocket):
    do_handshake = _limited(ssl.SSLSocket.do_handshake)
    recv = _limited(ssl.SSLSocket.recv)
    recv_into = _limited(ssl.SSLSocket.recv_into)
    send = _limited(ssl.SSLSocket.send)  # sendall sends many times


class _Connection(HTTPConnection):
    """The time-out for connecting covers all addresses, the proxy's answer and TLS together."""

    def connect(self) -> None:
        try:
            with within(self.timeout or math.inf):
                super().connect()
        except TimeoutError as error:
            raise exceptions.ConnectTimeoutError(
                self, f"{self.host} accepted no connection"
            ) from error

    def _new_conn(self) -> socket.socket:
        # Each of the name's addresses gets a share, so that a silent one leaves time for the next.
        seconds = left()
        with suppress(OSError):  # looked up again below, where it is reported
            found = socket.getaddrinfo(self._dns_host, self.port, type=socket.SOCK_STREAM)
            self.timeout = seconds / len(found)
        return _Socket(fileno=super()._new_conn().detach())


class _TlsConnection(_Connection, HTTPSConnection):
    def connect(self) -> None:
        self.ssl_context = create_urllib3_context()
        self.ssl_context.sslsocket_class = _TlsSocket
        if self.proxy_config and self._tunnel_scheme == "https":
            # It proves the proxy's certificate too, and urllib3 loads none for it.
            self.ssl_context.load_verify_locations(self.ca_certs, self.ca_cert_dir)
            self.proxy_config = self.proxy_config._replace(ssl_context=self.ssl_context)
        super().connect()


_CLASSES: Final = {HTTPConnection: _Connection, HTTPSConnection: _TlsConnection}


class Adapter(HTTPAdapter):
    """Opens connections that keep the deadline. Those through a SOCKS proxy do not."""

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **options)
        # Looked up each time: recorders of cassettes replace the pool's class for a while.
        given = type(pool).ConnectionCls
        pool.ConnectionCls = _CLASSES.get(given, given)
        return pool
