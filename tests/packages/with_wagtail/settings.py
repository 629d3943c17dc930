"""Settings for the tests with Wagtail."""

from __future__ import annotations

from tests.packages import made_migrations
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS, MIDDLEWARE

INSTALLED_APPS = [
    "tests.packages.with_wagtail",
    "wagtail.users",
    "wagtail.snippets",
    "wagtail.documents",
    "wagtail.images",
    "wagtail.search",
    "wagtail.admin",
    "wagtail",
    "modelcluster",
    "taggit",
    *[app for app in INSTALLED_APPS if app != "tests.app"],  # its migrations take as long again
]
MIDDLEWARE = [*MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
MIGRATION_MODULES = made_migrations("with_wagtail")
ROOT_URLCONF = "tests.packages.with_wagtail.urls"
LANGUAGE_CODE = "en"
LANGUAGES = WAGTAIL_CONTENT_LANGUAGES = [("en", "English"), ("de", "Deutsch")]
WAGTAIL_I18N_ENABLED = True
WAGTAIL_SITE_NAME = "Kitchen"
WAGTAILADMIN_BASE_URL = "http://localhost"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
