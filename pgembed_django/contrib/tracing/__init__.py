"""OpenTelemetry: continue the trace of a write in the worker that embeds the row.

Off unless ``PGEMBED_TRACING`` is set, which needs the extra ``[opentelemetry]``. A write
within a recording span stores the span's context in its job. The worker that claims the job
then adds a span to that trace.
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
    """Return whether the extra is installed."""
    try:
        # Not just "opentelemetry", which is a namespace that other packages share.
        return importlib.util.find_spec("opentelemetry.trace") is not None
    except ModuleNotFoundError:
        return False


def install() -> None:
    """Make all connections that are opened from now on carry traces, if the settings say so."""
    if conf.current().tracing and is_installed():
        connection_created.connect(_wrap, dispatch_uid="pgembed-tracing")


def of_worker() -> AbstractContextManager[object]:
    """Return a context manager that turns this process's events into spans.

    Raises:
        ImproperlyConfigured: the extra is not installed.
    """
    if not is_installed():
        raise ImproperlyConfigured(f"{MISSING} {REMEDY}")
    from pgembed_django.contrib.tracing.spans import Spans

    return Spans()


def _wrap(connection: BaseDatabaseWrapper, **_: object) -> None:
    from pgembed_django.contrib.tracing.spans import carry

    if connection.vendor == "postgresql" and carry not in connection.execute_wrappers:
        connection.execute_wrappers.append(carry)
