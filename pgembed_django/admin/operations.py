"""Spaces and live workers, to look at."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from pgembed_django.admin.reading import ReadOnlyAdmin
from pgembed_django.models import Space, Worker


class SpaceAdmin(ReadOnlyAdmin[Space]):
    """Which vectors are searched, which are being built, and with what model."""

    list_display = (
        "spec",
        "state",
        "model",
        "dimensions",
        "provider",
        "created_at",
        "activated_at",
        "retired_at",
    )
    list_filter = ("state",)
    ordering = ("-id",)
    fieldsets: ClassVar[Any] = (
        (None, {"fields": (("spec", "state", "is_partial"),)}),
        (_("Times"), {"fields": (("created_at", "activated_at", "retired_at", "pruned_at"),)}),
        (
            _("Model"),
            {"fields": ("provider", "backend", "model", "model_digest", "dimensions")},
        ),
        (_("Text"), {"fields": ("document_prefix", "query_prefix")}),
        (_("Identity"), {"fields": ("fingerprint", "options_text")}),
    )

    @admin.display(description=_("options"))
    def options_text(self, space: Space) -> SafeString:
        """What the provider was set up with. Secrets are names of environment variables."""
        text = json.dumps(space.options, indent=2, sort_keys=True, ensure_ascii=False)
        return format_html("<pre>{}</pre>", text)


class WorkerAdmin(ReadOnlyAdmin[Worker]):
    """The workers that are alive, or were until a short while ago."""

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
        """Host and process."""
        return str(worker)

    @admin.display(description=_("paused providers"))
    def paused_providers(self, worker: Worker) -> SafeString:
        """Each paused provider with the reason."""
        return format_html_join("; ", "{}: {}", worker.paused.items())

    @admin.display(description=_("specs set aside"))
    def set_aside(self, worker: Worker) -> SafeString:
        """Each spec that it leaves alone with the reason."""
        return format_html_join("; ", "{}: {}", worker.aside.items())

    @admin.display(description=_("specs"))
    def spec_keys(self, worker: Worker) -> str:
        """What it works on."""
        return ", ".join(worker.specs)
