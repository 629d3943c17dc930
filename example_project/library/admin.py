"""Edit an entry here, and the search page finds it by its new text."""

from __future__ import annotations

from django.contrib import admin
from django.forms import TextInput, modelform_factory

from library.models import Entry
from pgembed_django.admin import VectorsMixin

LINE = TextInput(attrs={"class": "vLargeTextField"})


@admin.register(Entry)
class EntryAdmin(VectorsMixin, admin.ModelAdmin):
    form = modelform_factory(
        Entry, fields="__all__", widgets={"name": LINE, "kind": LINE, "module": LINE}
    )
    list_display = ("name", "kind", "module", "is_public")
    list_filter = ("kind", "is_public")
    search_fields = ("name",)
