"""The admin, where a person triages what failed, and metrics."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from pgembed_django.contrib import metrics

urlpatterns = [path("admin/", admin.site.urls), path("metrics", metrics.view)]
