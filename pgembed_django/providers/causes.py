"""Find out why a connection failed, from the errors that ``requests`` wraps. Pure."""

from __future__ import annotations

import errno
import os

import requests
import urllib3


def was_connected(error: requests.ConnectionError) -> bool:
    """Return whether the connection broke (reset, broken pipe) after it was established."""
    return bool(error.args) and isinstance(error.args[0], urllib3.exceptions.ProtocolError)


def of(error: requests.RequestException) -> str:
    """Return the innermost reason, such as "[Errno 111] Connection refused"."""
    reason = _reason(error)
    where = "its proxy: " if isinstance(reason, urllib3.exceptions.ProxyError) else ""
    reason = getattr(reason, "original_error", reason)
    return where + (str(reason).rpartition(": ")[2] or type(error).__name__)


def remedy(error: requests.ConnectionError) -> str:
    """Return what to look at if no connection could be established."""
    if isinstance(_reason(error), urllib3.exceptions.ProxyError):
        return "Is the proxy of HTTP_PROXY or HTTPS_PROXY running, or is NO_PROXY missing?"
    if os.strerror(errno.EMFILE) in of(error):
        return "This process is at its limit of open files: see ulimit -n."
    return "Is the server running, and is base_url right?"


def _reason(error: requests.RequestException) -> object:
    reason: object = error.args[0] if error.args else error
    return getattr(reason, "reason", reason)
