"""The read-only pages of workers."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from pgembed_django.admin.lists import ReadOnlyAdmin
from pgembed_django.models import Worker


class WorkerAdmin(ReadOnlyAdmin[Worker]):
    """Shows the workers that are alive or died recently."""

    list_display = (
        "worker",
        "id",
        "last_seen_at",
        "holds",
        "paused_providers",
        "set_aside",
        "started_at",
        "version",
        "spec_keys",
    )
    ordering = ("-last_seen_at", "-id")
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("worker", "id", "version", "started_at", "last_seen_at")}),
        (_("Work"), {"fields": ("holds", "paused_providers", "set_aside", "spec_keys")}),
    )

    @admin.display(description=_("worker"))
    def worker(self, worker: Worker) -> str:
        """Host and process id."""
        return str(worker)

    @admin.display(description=_("paused providers"))
    def paused_providers(self, worker: Worker) -> SafeString:
        """The providers that the worker has paused, each with the reason."""
        return format_html_join("; ", "{}: {}", worker.paused.items())

    @admin.display(description=_("specs set aside"))
    def set_aside(self, worker: Worker) -> SafeString:
        """The specs that the worker has set aside, each with the reason."""
        return format_html_join("; ", "{}: {}", worker.aside.items())

    @admin.display(description=_("specs"))
    def spec_keys(self, worker: Worker) -> str:
        """The specs that the worker works on."""
        return ", ".join(worker.specs)
