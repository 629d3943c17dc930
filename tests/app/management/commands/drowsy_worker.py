"""A worker that wakes only for a reason: its own timers are an hour apart."""

from __future__ import annotations

from typing import Any

from pgembed_django.management.commands import embed_worker
from pgembed_django.queue import rollups, worker

HOUR = 3600.0


class Command(embed_worker.Command):
    def handle(self, **options: Any) -> None:
        rollups.FLUSH_SECONDS = worker.REPORT_SECONDS = worker.LISTENER_SECONDS = HOUR
        super().handle(**options)
