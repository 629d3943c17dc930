"""Settings of the example project. Not for production: the secret key and logins are public."""

from __future__ import annotations

import os
from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from config import postgres

SECRET_KEY = "an example has no secrets"
DEBUG = os.environ.get("DJANGO_DEBUG") == "1"
ALLOWED_HOSTS = os.environ.get("DJANGO_ALLOWED_HOSTS", "localhost 127.0.0.1 [::1]").split()

try:
    DATABASES = {"default": dj_database_url.parse(postgres.url())}
except ValueError as error:
    raise ImproperlyConfigured(
        f"DATABASE_URL cannot be read: {error} Write postgresql://user:password@host:5432/name, "
        "or unset it to use the embedded Postgres."
    ) from error
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"

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
    "memory",
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
PROVIDER = os.environ.get("PGEMBED_PROVIDER") or "wordllama"
if PROVIDER not in PROVIDERS:
    raise ImproperlyConfigured(
        f"PGEMBED_PROVIDER is {PROVIDER!r}. Set it to one of: {', '.join(PROVIDERS)}."
    )
PGEMBED_PROVIDERS = {"default": PROVIDERS[PROVIDER]}

TASKS = {
    "default": {"BACKEND": "pgembed_django.tasks.PostgresBackend", "QUEUES": ["default", "llm"]}
}
# The chat page asks this server. Without one, plain rules answer. For Ollama:
# PGEMBED_CHAT_URL=http://127.0.0.1:11434/v1 PGEMBED_CHAT_MODEL=llama3.2
CHAT_URL = os.environ.get("PGEMBED_CHAT_URL", "")
CHAT_MODEL = os.environ.get("PGEMBED_CHAT_MODEL", "")
CHAT_API_KEY = os.environ.get("PGEMBED_CHAT_API_KEY", "")
if CHAT_URL and not CHAT_MODEL:
    raise ImproperlyConfigured("PGEMBED_CHAT_URL is set. Name its model in PGEMBED_CHAT_MODEL.")

# A demo is killed more often than a server, so a dead worker's leases should expire soon.
PGEMBED_LEASE_SECONDS = 45
PGEMBED_REAP_SECONDS = 10

# Errors are logged to the terminal, also without DEBUG.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"terminal": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["terminal"], "level": "WARNING"},
}

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
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
