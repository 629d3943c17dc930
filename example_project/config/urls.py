"""The search page at the root, the chat page and the admin."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("website.urls")),
    path("chat/", include("memory.urls")),
    path("admin/", admin.site.urls),
]
