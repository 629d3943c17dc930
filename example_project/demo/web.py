"""Serve the search page, the chat page and the admin."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request

from demo.exceptions import DemoFailed
from demo.processes import Process

HOST = "127.0.0.1"
USUAL_PORT = 8000
START_SECONDS = 30


def free_port(wanted: int | None) -> int:
    """Return the wanted port. If none is wanted, return the usual one or any that is free."""
    for port in (wanted,) if wanted else (USUAL_PORT, 0):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, port))
            except (OSError, OverflowError) as error:
                reason = getattr(error, "strerror", None) or str(error).rstrip(".")
                continue
            return int(listener.getsockname()[1])
    raise DemoFailed(f"Port {wanted} cannot be used: {reason}. Choose another with --port.")


def server(port: int) -> Process:
    # --insecure serves the admin's style sheets without DEBUG, which would keep all queries.
    return Process("web server", "runserver", "--noreload", "--insecure", f"{HOST}:{port}")


def wait_until_ready(process: Process, port: int) -> str:
    """Return the address of the search page, once it answers."""
    address = f"http://{HOST}:{port}/"
    deadline = time.monotonic() + START_SECONDS
    while True:
        process.require_alive()
        try:
            with urllib.request.urlopen(address, timeout=START_SECONDS):
                return address
        except urllib.error.HTTPError as error:
            raise DemoFailed(
                f"The search page answers with {error.code}.{process.last_lines()}"
            ) from error
        except OSError as error:
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"{address} does not answer after {START_SECONDS} s: {error}."
                ) from error
            time.sleep(0.1)
