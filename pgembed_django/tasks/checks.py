"""Check a backend's entry in ``TASKS``. No database is asked, as ``migrate`` checks first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.db import connections
from django.utils.module_loading import import_string

from pgembed_django.exceptions import did_you_mean

if TYPE_CHECKING:
    from pgembed_django.tasks.backend import PostgresBackend

OPTIONS = ("limits", "move", "tenant_context")


def problems(backend: PostgresBackend) -> Iterator[CheckMessage]:
    """Yield what is wrong with a backend's settings."""
    if not apps.is_installed("pgembed_django"):
        yield Error(
            "TASKS names a backend of pgembed_django, which is not in INSTALLED_APPS.",
            hint="Add it, then run migrate.",
            id="pgembed.E024",
        )
        return
    alias = backend.database
    if connections[alias].vendor != "postgresql":
        yield Error(
            f"Tasks are kept in the database {alias!r}, which is "
            f"{connections[alias].display_name}, not PostgreSQL.",
            hint="Let a router name one that is, for the app pgembed.",
            id="pgembed.E025",
        )
    for said in _of_options(backend):
        yield Error(f"TASKS[{backend.alias!r}]: {said}", id="pgembed.E026")


def _of_options(backend: PostgresBackend) -> Iterator[str]:
    from pgembed_django.tasks import limits, moving  # they import models

    queues, options = sorted(backend.queues), backend.options
    if not queues:
        yield "QUEUES is empty. Name each queue: the worker has to know which to run."
    for name in queues:
        if "." in name or not name:
            yield f"the queue {name!r} in QUEUES: a queue's name has no dot, and is not empty."
    yield from _unknown(options, OPTIONS, "OPTIONS")
    if (path := options.get("tenant_context")) is not None:
        try:
            import_string(path)
        except (ImportError, AttributeError, TypeError) as error:
            yield f"OPTIONS['tenant_context'] is {path!r}: {error}"
    for what, remedy in moving.problems(backend):
        yield f"{what} {remedy}"
    yield from limits.problems(options.get("limits", {}), queues)


def _unknown(given: Any, known: Any, where: str) -> Iterator[str]:
    for name in given:
        if name not in known:
            yield (
                f"{where} has {name!r}, which is unknown. {did_you_mean(name, known)}"
                f"There are: {', '.join(known)}."
            )
