"""Connections that keep a deadline, so that a request ends in time whatever the server does.

The time-outs of ``requests`` limit each wait, so a server that sends a byte now and then, or a name
with many addresses, prolongs them for ever. Only the lookup of a name cannot be limited.
"""

from __future__ import annotations

import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError
from urllib3.util.ssl_ import create_urllib3_context


class _Deadline(threading.local):
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


def is_over() -> bool:
    """Return whether the deadline has passed."""
    return time.monotonic() >= _deadline.at


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
            raise ConnectTimeoutError(self, f"{self.host} accepted no connection") from error

    def _new_conn(self) -> socket.socket:
        """Connect to one of the name's addresses. One that is silent leaves time for the next."""
        try:
            found = socket.getaddrinfo(self._dns_host, self.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        failure: OSError | None = None
        for ahead, (family, kind, protocol, _, address) in zip(
            reversed(range(len(found))), found, strict=True
        ):
            try:
                with socket.socket(family, kind, protocol) as opened:
                    for option in self.socket_options or ():
                        opened.setsockopt(*option)
                    opened.settimeout(left() / 2 if ahead else left())
                    opened.connect(address)
                    return _Socket(fileno=opened.detach())
            except OSError as error:
                failure = error
        if isinstance(failure, TimeoutError):
            raise failure
        raise NewConnectionError(self, f"Failed to establish a new connection: {failure}")


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
