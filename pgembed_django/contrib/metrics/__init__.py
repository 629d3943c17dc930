"""Prometheus metrics of the queue, read by SQL when it is scraped, and of one worker.

They need the extra ``[metrics]``. Without it this module can still be imported. Its functions
then raise ``ImproperlyConfigured``.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from pgembed_django.models.shown import shown_database

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

from pgembed_django.contrib.metrics.exposition import Exposition
from pgembed_django.queue.worker import Worker

__all__ = ["queue_collector", "view"]


@never_cache
@require_safe
def view(request: HttpRequest, *, using: str | None = None) -> HttpResponse:
    """Answer a scrape with the queue's gauges.

    It has no access control: do not expose it to the internet, or wrap it.
    """
    exposition = _exposition().of_queue(using or shown_database())
    body, content_type = exposition.render(request.headers.get("Accept", ""))
    return HttpResponse(body, content_type=content_type)


def queue_collector(*, using: str | None = None) -> Collector:
    """Return the queue's gauges for a registry of your own: ``REGISTRY.register(...)``."""
    return _exposition().queue_collector(using or shown_database())


def of_worker(worker: Worker) -> Exposition:
    """Return the metrics for a worker's port: its own counters, and the queue's gauges."""
    return _exposition().of_worker(worker)


def _exposition() -> type[Exposition]:
    if importlib.util.find_spec("prometheus_client") is None:
        raise ImproperlyConfigured(
            "Metrics need prometheus-client. Install it: pip install 'pgembed-django[metrics]'."
        )
    from pgembed_django.contrib.metrics.exposition import Exposition

    return Exposition
