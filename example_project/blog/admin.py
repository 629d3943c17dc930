"""Publish an article here, and searches find it. Clear its time, and they no longer do."""

from __future__ import annotations

from django.contrib import admin
from django.forms import TextInput, modelform_factory

from blog.models import Article
from pgembed_django.admin import VectorsMixin

LINE = TextInput(attrs={"class": "vLargeTextField"})


@admin.register(Article)
class ArticleAdmin(VectorsMixin, admin.ModelAdmin):
    form = modelform_factory(
        Article, fields="__all__", widgets={"title": LINE, "author": LINE, "category": LINE}
    )
    list_display = ("title", "author", "category", "published_time")
    list_filter = ("category",)
    search_fields = ("title",)
