"""Correct a memory here, and answers recall its new text. Delete it, and they no longer do."""

from __future__ import annotations

from django.contrib import admin
from django.forms import TextInput, modelform_factory

from memory.models import Exchange, Memory
from pgembed_django.admin import VectorsMixin

LINE = TextInput(attrs={"class": "vLargeTextField"})


@admin.register(Memory)
class MemoryAdmin(VectorsMixin, admin.ModelAdmin):
    form = modelform_factory(Memory, fields="__all__", widgets={"tenant": LINE, "text": LINE})
    list_display = ("text", "tenant", "created_at", "superseded_by")
    list_filter = ("tenant",)
    raw_id_fields = ("exchange", "superseded_by")
    search_fields = ("text",)


@admin.register(Exchange)
class ExchangeAdmin(admin.ModelAdmin):
    list_display = ("message", "tenant", "created_at", "extracted_at", "extracted_by")
    list_filter = ("tenant",)
    raw_id_fields = ("recalled",)
    search_fields = ("message",)
