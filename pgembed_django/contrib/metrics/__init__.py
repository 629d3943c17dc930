"""Prometheus metrics of the queue, read by SQL when it is scraped, and of one worker.

They need the extra ``[metrics]``. Without it this module can still be imported. Its functions
then raise ``ImproperlyConfigured``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from pgembed_django.models.job import shown_database

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from pgembed_django.queue.worker import Worker

__all__ = ["queue_collector", "view"]

Render = Callable[[str], tuple[bytes, str]]
"""Takes the header ``Accept`` of a scrape, and returns the body and its content type."""


@never_cache
@require_safe
def view(request: HttpRequest, *, using: str | None = None) -> HttpResponse:
    """Answer a scrape with the queue's gauges: a web process is one of many, and counts nothing.

    It has no access control: do not expose it to the internet, or wrap it.
    """
    render: Render = _collectors().render_of(queue_collector(using=using))
    body, content_type = render(request.headers.get("Accept", ""))
    return HttpResponse(body, content_type=content_type)


def queue_collector(*, using: str | None = None) -> Collector:
    """Return the queue's gauges for a registry of your own: ``REGISTRY.register(...)``."""
    found: Collector = _collectors().queue_collector(using or shown_database())
    return found


def of_worker(worker: Worker) -> Render:
    """Return what renders a worker's counters from now on, its state, and the queue's gauges."""
    render: Render = _collectors().of_worker(worker)
    return render


def _collectors() -> Any:
    if importlib.util.find_spec("prometheus_client") is None:
        raise ImproperlyConfigured(
            "Metrics need prometheus-client. Install it: pip install 'pgembed-django[metrics]'."
        )
    from pgembed_django.contrib.metrics import collectors

    return collectors
