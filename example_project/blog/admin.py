"""Publish an article here, and a search finds it; clear its time, and no search does."""

from __future__ import annotations

from django.contrib import admin

from blog.models import Article
from pgembed_django.admin import VectorsMixin


@admin.register(Article)
class ArticleAdmin(VectorsMixin, admin.ModelAdmin):
    list_display = ("title", "author", "category", "published_time")
    list_filter = ("category",)
    search_fields = ("title",)
