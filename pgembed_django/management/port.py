"""The worker's port: parse ``--listen``, and serve the health and metrics pages."""

from __future__ import annotations

import argparse
from http import HTTPStatus
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import connections

from pgembed_django.contrib import metrics
from pgembed_django.ops.stoppable import CANNOT_START
from pgembed_django.queue.readiness import Readiness
from pgembed_django.queue.serving import Answer, Page, Server
from pgembed_django.queue.worker import Worker

MAX_PORT = 65_535


class Address(NamedTuple):
    """A host and port to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def address(value: object) -> Address:
    """Parse ``9100``, ``0.0.0.0:9100`` or ``[::]:9100``."""
    host, _, number = str(value).rpartition(":")
    is_port = number.isdecimal() and int(number) <= MAX_PORT
    if not (is_port and _is_host(host)):
        raise argparse.ArgumentTypeError(
            f"{value!r} is no address. Write it like 9100, 0.0.0.0:9100 or [::]:9100"
        )
    return Address(host.strip("[]") or "127.0.0.1", int(number))


def _is_host(text: str) -> bool:
    try:
        # The lookup of the host will encode it like this.
        text.encode("idna")
    except UnicodeError:
        return False
    return ":" not in text or text[0] == "["


def port(worker: Worker, listen: Address) -> Server:
    """Return the server of a worker's pages, bound but not started.

    Raises:
        CommandError: the address cannot be listened on.
    """
    readiness = Readiness(worker)
    pages: dict[str, Page] = {
        "/healthz": lambda _: _health(worker),
        "/readyz": lambda _: _readiness(readiness),
        "/metrics": _metrics(worker),
    }
    try:
        return Server(*listen, pages)
    except OSError as error:
        raise CommandError(
            f"Cannot listen on {listen}: {error.strerror}. Does another worker use it? Give each "
            "worker on one machine its own port with --listen.",
            returncode=CANNOT_START,
        ) from error


def _health(worker: Worker) -> Answer:
    stuck = worker.liveness.stuck()
    if stuck is None:
        return Answer("ok\n")
    text = f"The loop has been stuck for {stuck.seconds:.0f} s in {stuck.where}\n"
    return Answer(text, HTTPStatus.SERVICE_UNAVAILABLE)


def _readiness(readiness: Readiness) -> Answer:
    missing = readiness.missing()
    if not missing:
        return Answer("ready\n")
    return Answer("\n".join([*missing, ""]), HTTPStatus.SERVICE_UNAVAILABLE)


def _metrics(worker: Worker) -> Page:
    try:
        render = metrics.of_worker(worker)
    except ImproperlyConfigured as error:
        text = f"{error}\n"
        return lambda _: Answer(text, HTTPStatus.NOT_IMPLEMENTED)
    except OSError as error:  # PROMETHEUS_MULTIPROC_DIR cannot be written to
        raise CommandError(
            f"Cannot count for /metrics: {error}.", returncode=CANNOT_START
        ) from error

    def page(accept: str) -> Answer:
        try:
            body, content_type = render(accept)
        finally:
            # The thread ends with the request, but would leave its connection open.
            connections[worker.using].close()
        return Answer(body, content_type=content_type)

    return page
