"""OpenTelemetry: the trace of a write goes on where its vectors are made.

Off unless ``PGEMBED_TRACING`` is set, and then it needs the extra ``[opentelemetry]``. A
write within a recording span leaves the span's context on its job; a worker that claims
the job makes a span of it in that trace.
"""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager

from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from pgembed_django import conf

__all__ = ["install", "is_installed", "of_worker"]

MISSING = "PGEMBED_TRACING needs opentelemetry-api."
REMEDY = "Install it: pip install 'pgembed-django[opentelemetry]'."


def is_installed() -> bool:
    """Tell whether the extra is there."""
    try:
        # Other packages share the namespace, so that one alone says nothing.
        return importlib.util.find_spec("opentelemetry.trace") is not None
    except ModuleNotFoundError:
        return False


def install() -> None:
    """Let every connection from now on carry traces, where the settings say so."""
    if conf.current().tracing and is_installed():
        connection_created.connect(_wrap, dispatch_uid="pgembed-tracing")


def of_worker() -> AbstractContextManager[object]:
    """Return what makes spans of this process's events, from ``with`` on.

    Raises:
        ImproperlyConfigured: the extra is not installed.
    """
    if not is_installed():
        raise ImproperlyConfigured(f"{MISSING} {REMEDY}")
    from pgembed_django.tracing.spans import Spans

    return Spans()


def _wrap(connection: BaseDatabaseWrapper, **_: object) -> None:
    from pgembed_django.tracing.carrying import carry

    if connection.vendor == "postgresql" and carry not in connection.execute_wrappers:
        connection.execute_wrappers.append(carry)
