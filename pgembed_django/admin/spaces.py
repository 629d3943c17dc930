"""The read-only pages of spaces."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from pgembed_django.admin.lists import ReadOnlyAdmin
from pgembed_django.models import Space


class SpaceAdmin(ReadOnlyAdmin[Space]):
    """Shows which space is searched, which is being built, and the model of each."""

    list_display = (
        "spec",
        "number",
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
        (None, {"fields": (("spec", "number", "state", "is_partial"),)}),
        (_("Times"), {"fields": (("created_at", "activated_at", "retired_at", "pruned_at"),)}),
        (
            _("Model"),
            {"fields": ("provider", "backend", "model", "model_digest", "dimensions")},
        ),
        (_("Recognized"), {"fields": ("model_facts", "canary_at", "exchanged", "exchanged_at")}),
        (_("Text"), {"fields": ("document_prefix", "query_prefix")}),
        (_("Identity"), {"fields": ("fingerprint", "options_text")}),
    )

    @admin.display(description=_("number"))
    def number(self, space: Space) -> str:
        """The number by which `embed_spaces` knows it."""
        return str(space.pk)

    @admin.display(description=_("options"))
    def options_text(self, space: Space) -> SafeString:
        """The provider's options. Secrets appear only as names of environment variables."""
        text = json.dumps(space.options, indent=2, sort_keys=True, ensure_ascii=False)
        return format_html("<pre>{}</pre>", text)
