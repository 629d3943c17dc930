"""Settings of the example project. Not for production: the key is public, logins are known."""

from __future__ import annotations

import os
from typing import Any

import dj_database_url

from config import postgres

SECRET_KEY = "an example has no secrets"
DEBUG = os.environ.get("DJANGO_DEBUG") == "1"
ALLOWED_HOSTS = os.environ.get("DJANGO_ALLOWED_HOSTS", "localhost 127.0.0.1 [::1]").split()

DATABASES = {"default": dj_database_url.parse(postgres.url())}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "pgtrigger",
    "pgembed_django",
    "blog",
    "library",
    "website",
    "demo",
]

PROVIDERS: dict[str, dict[str, Any]] = {
    "wordllama": {
        "BACKEND": "pgembed_django.providers.wordllama.WordLlamaProvider",
        "MODEL": "l2_supercat",
        "DIMENSIONS": 256,
    },
    "ollama": {
        "BACKEND": "pgembed_django.providers.ollama.OllamaProvider",
        "MODEL": "nomic-embed-text",
        "DIMENSIONS": 768,
        "OPTIONS": {"document_prefix": "search_document: ", "query_prefix": "search_query: "},
    },
}
PGEMBED_PROVIDERS = {"default": PROVIDERS[os.environ.get("PGEMBED_PROVIDER") or "wordllama"]}

ROOT_URLCONF = "config.urls"
STATIC_URL = "static/"
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
