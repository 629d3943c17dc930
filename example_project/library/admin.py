"""Edit an entry here, and the search page finds it by its new text."""

from __future__ import annotations

from django.contrib import admin

from library.models import Entry
from pgembed_django.admin import VectorsMixin


@admin.register(Entry)
class EntryAdmin(VectorsMixin, admin.ModelAdmin):
    list_display = ("name", "kind", "module", "is_public")
    list_filter = ("kind", "is_public")
    search_fields = ("name",)
