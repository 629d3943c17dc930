"""The site: its search, its admin, its pages."""

from __future__ import annotations

from django.conf.urls.i18n import i18n_patterns
from django.urls import include, path
from wagtail import urls as wagtail_urls
from wagtail.admin import urls as admin_urls

from tests.packages.with_wagtail.views import search_pages

urlpatterns = [path("admin/", include(admin_urls))]
urlpatterns += i18n_patterns(
    path("search/", search_pages, name="search"), path("", include(wagtail_urls))
)
